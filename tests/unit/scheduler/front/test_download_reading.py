"""A file that is read in threads is closed whenever its reader goes away."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from services.scheduler.catalog import downloads
from tests.doubles.eventually import eventually


def open_descriptors(file: Path) -> int:
    return sum(os.path.realpath(fd) == str(file) for fd in Path("/proc/self/fd").iterdir())


async def test_a_reader_that_leaves_while_its_file_is_opened_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = (tmp_path / "weights").resolve()
    file.write_bytes(b"x")
    opening, left = threading.Event(), threading.Event()
    real = downloads._open

    def slow(path: Path) -> object:
        found = real(path)
        opening.set()
        left.wait(5)
        return found

    monkeypatch.setattr(downloads, "_open", slow)
    frames = downloads._read(file, 0, 1)
    first = asyncio.ensure_future(anext(frames))
    await asyncio.to_thread(opening.wait, 5)
    first.cancel()
    await asyncio.wait([first])
    left.set()
    await eventually(lambda: open_descriptors(file) == 0)


async def test_a_read_to_the_end_closes_the_file(tmp_path: Path) -> None:
    file = (tmp_path / "weights").resolve()
    file.write_bytes(b"abcdef")
    assert [part async for part in downloads._read(file, 2, 3)] == [b"cde"]
    assert open_descriptors(file) == 0
