"""The files of one pinned version, and all of them as a tar archive, in frames."""

from __future__ import annotations

import os
import tarfile
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

from tinkermesh.v1 import catalog_pb2 as pb

from services.common.errors import InvalidInput, MissingResource
from services.common.frames import FRAME_BYTES
from services.common.store import META_FILE
from services.common.tinker_path import parse_tinker_path
from services.scheduler.artifacts import Artifact, Artifacts
from services.scheduler.shared_store import in_store

BLOCK = tarfile.BLOCKSIZE
TAR_END = 2 * BLOCK


class Downloads:
    """meta.json stays here: it says whose the checkpoint is, and carries the mesh's seal."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    async def describe(self, path: str, tenant_id: str) -> pb.DownloadDescription:
        """Raises InvalidInput, MissingResource, Forbidden."""
        artifact = await self._artifacts.find(path, tenant_id, "")
        files = await in_store(_files, artifact.directory)
        return pb.DownloadDescription(
            version=artifact.version,
            files=[pb.DownloadFile(name=name, size_bytes=size) for name, size in files.items()],
            expires_unix_ms=artifact.expires_ms,
        )

    async def file(self, request: pb.ReadFileRequest) -> AsyncIterator[pb.DownloadFrame]:
        """Raises InvalidInput, MissingResource."""
        artifact = await self._pinned(request.path, request.version)
        size = (await in_store(_files, artifact.directory)).get(request.file)
        if size is None:
            raise MissingResource(f"{request.path} has no file {request.file[:200]!r}")
        if request.offset > size:
            raise InvalidInput(f"offset: {request.offset} is behind the file's {size} bytes")
        length = min(request.length or size, size - request.offset)
        yield pb.DownloadFrame(total_bytes=size)
        async for data in _read(artifact.directory / request.file, request.offset, length):
            yield pb.DownloadFrame(data=data)

    async def archive(self, request: pb.ReadArchiveRequest) -> AsyncIterator[pb.DownloadFrame]:
        """Raises InvalidInput, MissingResource."""
        artifact = await self._pinned(request.path, request.version)
        files = await in_store(_files, artifact.directory)
        total = sum(BLOCK + size + _padding(size) for size in files.values()) + TAR_END
        yield pb.DownloadFrame(total_bytes=total)
        for name, size in files.items():
            yield pb.DownloadFrame(data=_header(name, size, artifact.meta.created_unix_ms // 1000))
            async for data in _read(artifact.directory / name, 0, size):
                yield pb.DownloadFrame(data=data)
            yield pb.DownloadFrame(data=bytes(_padding(size)))
        yield pb.DownloadFrame(data=bytes(TAR_END))

    async def _pinned(self, path: str, version: str) -> Artifact:
        return await self._artifacts.pinned(parse_tinker_path(path), version)


def _files(directory: Path) -> dict[str, int]:
    """Regular files and their sizes, by name."""
    entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    plain = (entry for entry in entries if entry.name != META_FILE and entry.is_file(follow_symlinks=False))
    return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in plain}


async def _read(file: Path, offset: int, length: int) -> AsyncIterator[bytes]:
    # An object, not a descriptor: a reader that goes away while the thread opens it drops, and so closes, it.
    stream = await in_store(_open, file)
    try:
        while length > 0:
            data = await in_store(os.pread, stream.fileno(), min(length, FRAME_BYTES), offset)
            if not data:
                raise MissingResource(f"{file.name} ended early; its checkpoint is being deleted")
            yield data
            offset, length = offset + len(data), length - len(data)
    finally:
        stream.close()


def _open(file: Path) -> FileIO:
    try:
        return open(file, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW))
    except OSError as error:
        raise MissingResource(f"{file.name} cannot be read; its checkpoint is being deleted") from error


def _padding(size: int) -> int:
    return -size % BLOCK


def _header(name: str, size: int, unix_seconds: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, unix_seconds
    return entry.tobuf(tarfile.GNU_FORMAT)
