"""Blocks as files under one directory: written beside and renamed, read with every check, dropped on any doubt.

    <root>/<namespace>/<two digits of the key>/<key>.kv

A namespace is everything that must be equal for two engines to share a block; blocks of other engines lie
elsewhere and are never met.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.sampler.kv_connector.block_file import BadBlock, BlockGeometry, decode, encode

SUFFIX = ".kv"
TEMPORARY = ".tmp"
STALE_TEMPORARY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    """Bytes on disk."""
    used: float
    """Unix seconds of its last save; a save of what is there already renews it."""


class BlockStore:
    def __init__(self, root: Path, namespace: str, geometry: BlockGeometry) -> None:
        self._directory = root / namespace
        self._geometry = geometry

    def prepare(self) -> None:
        """Raises OSError where the directory cannot be made."""
        self._directory.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}{SUFFIX}"

    def write(self, key: str, payload: bytes) -> int:
        """Bytes written, 0 when the block was there already. Raises OSError, and then leaves nothing behind."""
        path = self.path(key)
        if self._renewed(path):
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encode(key, self._geometry, payload)
        temporary = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}{TEMPORARY}")
        try:
            # Not synced: a block that a power loss tears fails its checksum, and is dropped.
            with temporary.open("xb", buffering=0) as file:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        return len(data)

    def read(self, key: str) -> memoryview:
        """The block's bytes. Raises BadBlock; what is there and not right is gone afterwards."""
        try:
            data = self.path(key).read_bytes()
        except FileNotFoundError:
            raise BadBlock("missing", "there is no such block") from None
        except OSError as error:
            raise BadBlock("unreadable", f"it cannot be read: {error.strerror}") from None
        try:
            return decode(data, key, self._geometry)
        except BadBlock:
            self.drop(key)
            raise

    def drop(self, key: str) -> bool:
        """False when it was not there, or cannot be removed."""
        try:
            self.path(key).unlink()
        except OSError:
            return False
        return True

    def entries(self) -> Iterator[Entry]:
        """Every block, in no order; one that goes meanwhile is left out. Removes what died writers left."""
        for folder in _folders(self._directory):
            for file in _files(folder):
                try:
                    facts = file.stat()
                except OSError:
                    continue
                if file.name.endswith(SUFFIX):
                    yield Entry(file.name.removesuffix(SUFFIX), facts.st_size, facts.st_mtime)
                elif facts.st_mtime < time.time() - STALE_TEMPORARY_SECONDS:
                    with contextlib.suppress(OSError):
                        Path(file.path).unlink()

    def _renewed(self, path: Path) -> bool:
        try:
            os.utime(path)
        except OSError:
            return False
        return True


def _folders(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir()]
    except OSError:
        return []


def _files(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
