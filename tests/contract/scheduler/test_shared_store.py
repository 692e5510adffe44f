"""The shared store may be away, and files may go while they are looked at."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, cast

import pytest

from services.common.errors import InvalidInput, MissingResource, Unavailable
from services.common.store import public_directory
from services.common.tinker_path import TinkerPath
from services.scheduler.artifacts import Artifacts
from services.scheduler.shared_store import in_store

PATH = TinkerPath("39aa5eb2-e234-4a95-ab68-896e4cac8c45:train:0", "weights", "one")


def failing(error: Exception) -> Any:
    def work(*_: object, **__: object) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EIO, "bad disk"), Unavailable),
        (OSError("no number"), Unavailable),
        (FileNotFoundError(errno.ENOENT, "gone"), MissingResource),
        (InvalidInput("its own"), InvalidInput),
    ],
)
async def test_errors_of_files_are_typed(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await in_store(failing(error))


async def test_a_deletion_that_the_store_refuses_waits_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = tmp_path / public_directory(PATH)
    public.parent.mkdir(parents=True)
    public.symlink_to("_version_one_1")
    artifacts = Artifacts(tmp_path, b"p" * 32, lambda _digest: "", cast("Any", None))
    monkeypatch.setattr(Path, "unlink", failing(OSError(errno.EIO, "bad disk")))
    with pytest.raises(Unavailable, match="shared store"):
        await artifacts.remove(PATH, "_version_one_1")
