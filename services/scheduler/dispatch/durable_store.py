"""Where durable points lie in the shared store, and how their files go.

<root>/durable/<pool>/<model id>/<unit id>                    relative link, as of any publication
<root>/durable/<pool>/<model id>/_version_<unit id>_<unique>/ immutable; its path is a model's base
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.common.errors import InvalidInput
from services.common.store import contained
from services.common.tinker_path import DURABLE
from services.scheduler.shared_store import in_store


class DurableFiles:
    """File access runs in threads. Raises Unavailable when the store does not let it.

    Writers rename, and former leaders delete, while this looks: what has gone meanwhile is no error.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def delete(self, directory: str) -> None:
        """A version that is no base any more, its public name first; of what is gone: nothing."""
        await in_store(self._delete, directory)

    async def models(self, pool: str, after: str, limit: int) -> tuple[list[str], str]:
        """Models of the pool with durable points in the store, by name, those behind `after`; and the last of
        them, "" when there are no more."""
        return await in_store(self._models_behind, pool, after, limit)

    async def versions(self, pool: str, models: Sequence[str], older_than_seconds: float) -> dict[str, list[str]]:
        """By model: version directories and residues, relative to the root, written longer ago. None: left out."""
        return await in_store(self._versions, pool, models, time.time() - older_than_seconds)

    async def delete_empty(self, pool: str, models: Sequence[str], older_than_seconds: float) -> None:
        """Folders of models that hold nothing and changed longer ago: a writer died before its first version."""
        await in_store(self._delete_empty, pool, models, time.time() - older_than_seconds)

    def _models_behind(self, pool: str, after: str, limit: int) -> tuple[list[str], str]:
        names = (folder.name for folder in _folders(self._root / DURABLE / pool))
        found = heapq.nsmallest(limit + 1, (name for name in names if name > after))
        return found[:limit], found[limit - 1] if len(found) > limit else ""

    def _delete(self, directory: str) -> None:
        if not directory.startswith(f"{DURABLE}/"):
            raise InvalidInput(f"{directory[:300]!r} is no durable point")
        version = contained(self._root, directory)
        with contextlib.suppress(FileNotFoundError):
            self._delete_version(version)

    def _delete_version(self, version: Path) -> None:
        parent = version.parent
        for link in _links(parent):
            if link.readlink().name == version.name:
                link.unlink(missing_ok=True)
        shutil.rmtree(version, ignore_errors=True)
        if parent.is_dir() and parent.parent.parent == (self._root / DURABLE).resolve() and not any(parent.iterdir()):
            parent.rmdir()

    def _versions(self, pool: str, models: Sequence[str], unix_seconds: float) -> dict[str, list[str]]:
        found = {model_id: self._old_of(pool, model_id, unix_seconds) for model_id in models}
        return {model_id: names for model_id, names in found.items() if names}

    def _delete_empty(self, pool: str, models: Sequence[str], unix_seconds: float) -> None:
        for model_id in models:
            folder = contained(self._root, f"{DURABLE}/{pool}/{model_id}")
            if _written_at(folder) < unix_seconds:
                with contextlib.suppress(FileNotFoundError), _unless_filled():
                    folder.rmdir()

    def _old_of(self, pool: str, model_id: str, unix_seconds: float) -> list[str]:
        root = self._root.resolve()
        folder = contained(root, f"{DURABLE}/{pool}/{model_id}")
        old = (entry for entry in _folders(folder) if _written_at(entry) < unix_seconds)
        return [str(entry.relative_to(root)) for entry in old]


@contextlib.contextmanager
def _unless_filled() -> Iterator[None]:
    """rmdir itself looks, so nothing that comes meanwhile is lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _written_at(folder: Path) -> float:
    """Unix seconds; of one that is gone meanwhile: never."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _links(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (entry for entry in folder.iterdir() if entry.is_symlink())


def _folders(folder: Path) -> Iterator[Path]:
    """Residues of writers included: their names begin with a prefix of their own."""
    if folder.is_dir():
        yield from (entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
