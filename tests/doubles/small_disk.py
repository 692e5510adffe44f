"""A small file system of its own, to be filled up: a real ENOSPC instead of an injected one."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MEBIBYTE = 1 << 20


@contextmanager
def small_disk(directory: Path, mebibytes: int = 8) -> Iterator[Path]:
    """A tmpfs of so many MiB at `directory`; skips the test where mounting is not permitted."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=10)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Not a byte is free inside the block."""
    ballast = disk / ".ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MEBIBYTE, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its errno is looked at
        (disk / ".probe").write_bytes(b"x" * 8192)
    assert caught.value.errno == errno.ENOSPC
    (disk / ".probe").unlink(missing_ok=True)
    yield
    ballast.unlink()
