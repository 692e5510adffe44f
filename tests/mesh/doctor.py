"""What the tests of `tinkermesh doctor` share: places to plant something in, and the answer taken apart."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from services.common.findings import Finding
from services.local import cli
from services.local.endpoints import FILE, Endpoints
from services.local.state import keyring
from tests.doubles import model_dir
from tests.doubles.valkey import free_port

VARIABLES = ("TINKER_BASE_URL", "TINKER_API_KEY", "TINKERMESH_STATE", "TINKERMESH_VALKEY", "TINKERMESH_CACHE")
PREFIXES = ("TINKERMESH_SCHEDULER", "TINKERMESH_GATEWAY", "TINKERMESH_TRAINER", "TINKERMESH_SAMPLER", "TINKERMESH_TLS")


class Answer(msgspec.Struct):
    errors: int
    findings: list[Finding]
    exit_code: int = 0

    def troubles(self) -> list[tuple[str, str]]:
        """(level, check) of everything there is something to do about."""
        return [(one.level, one.check) for one in self.findings if one.level in ("warning", "error")]

    def remedy(self, check: str) -> str:
        """Of the trouble `check`, with its text."""
        found = [one for one in self.findings if one.check == check and one.level in ("warning", "error")]
        return "\n".join(f"{one.text} -> {one.remedy}" for one in found)


def ask(*arguments: str) -> Answer:
    done = CliRunner().invoke(cli.app, ["doctor", "--json", *arguments])
    assert done.exit_code in (0, 1) and done.stdout, done.output + done.stderr + repr(done.exception)
    answer = msgspec.json.decode(done.stdout, type=Answer)
    answer.exit_code = done.exit_code
    assert (answer.exit_code == 1) == (answer.errors > 0)
    return answer


def clean(patch: pytest.MonkeyPatch) -> None:
    """No variable names a mesh."""
    for name in [*VARIABLES, *(name for name in os.environ if name.startswith(PREFIXES))]:
        patch.delenv(name, raising=False)


def stopped(directory: Path) -> Path:
    """A state directory on which a mesh ran, with a model; its ports are free."""
    directory.mkdir(mode=0o700)
    for name in ("store", "run", "redis"):
        (directory / name).mkdir()
    keyring(directory / "keys.json", directory / "pepper").add("tml-local")
    ports = [f"127.0.0.1:{free_port()}" for _ in range(5)]
    last = Endpoints(
        base_url=f"http://{ports[0]}",
        redis=ports[1],
        schedulers=(ports[2],),
        trainers=(ports[3],),
        samplers=(ports[4],),
        model=str(model_dir.build(directory / "model")),
        model_name="test/zeros",
        durability="strict",
    )
    (directory / "run" / FILE).write_bytes(msgspec.json.encode(last))
    return directory


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing can be written there, not even by root; skips where that needs a mount that is not permitted."""
    if os.geteuid() != 0:
        mode = stat.S_IMODE(directory.stat().st_mode)
        directory.chmod(0o500)
        try:
            yield
        finally:
            directory.chmod(mode)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=10)
