"""Payloads of commands: segments in Redis, or files in the shared store when they are large.

They are written under a unique upload id with a time to live, before the admitting function
attaches and keeps them; large function arguments would block the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from redis.asyncio import Redis

from services.common.errors import ContractViolation, Unavailable
from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis

SEGMENT_BYTES = 512 << 10
REDIS_LIMIT_BYTES = 8 << 20
UPLOAD_TTL_SECONDS = 600
ORPHAN_SECONDS = 3600.0
NAMES_PER_READ = 200
BLOB_PREFIX = "blob-"
PART_PREFIX = ".part-"


class Upload(NamedTuple):
    """Where a payload lies; `name` is "" for none."""

    name: str
    segments: int


NO_UPLOAD = Upload("", 0)


def blob_name(pool: str, key: str) -> str:
    """Of a file that belongs to the request `key`."""
    return f"{BLOB_PREFIX}{pool}.{key}.{uuid.uuid4().hex}"


class Pending(NamedTuple):
    """A payload on its way: `segments` (key -> bytes) are set in the round trip of the admitting call."""

    upload: Upload
    segments: dict[str, bytes]


NOTHING = Pending(NO_UPLOAD, {})


class BlobStore(Protocol):
    """Durable bytes by name, outside Redis."""

    async def put(self, name: str, data: bytes) -> None:
        """Raises Unavailable when the store cannot take it."""
        ...

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Raises ContractViolation when the blob is missing or shorter, Unavailable."""
        ...

    async def delete(self, name: str) -> None:
        """Of one that is gone: nothing. Raises Unavailable."""
        ...

    async def older_than(self, seconds: float) -> list[str]:
        """Names of blobs, and of those never written whole, that were written longer ago. Raises Unavailable."""
        ...


class FileBlobs:
    """One fsynced file per blob in a directory all replicas share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, name, data)

    def _put(self, name: str, data: bytes) -> None:
        temporary = self._directory / f"{PART_PREFIX}{name}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(temporary, data)
            temporary.replace(self._directory / name)
            self._flush_names()
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _store_trouble(error) from error

    def _write(self, path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _flush_names(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def read(self, name: str, start: int, end: int) -> bytes:
        return await asyncio.to_thread(self._read, name, start, end)

    def _read(self, name: str, start: int, end: int) -> bytes:
        try:
            with (self._directory / name).open("rb") as file:
                file.seek(start)
                data = file.read(end - start)
        except FileNotFoundError as error:
            raise ContractViolation(f"payload {name} is missing in the shared store") from error
        except OSError as error:
            raise _store_trouble(error) from error
        if len(data) != end - start:
            raise ContractViolation(f"payload {name} is shorter than {end} bytes")
        return data

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        with _reaching_store():
            (self._directory / name).unlink(missing_ok=True)

    async def older_than(self, seconds: float) -> list[str]:
        return await asyncio.to_thread(self._older_than, time.time() - seconds)

    def _older_than(self, unix_seconds: float) -> list[str]:
        with _reaching_store():
            parts = self._directory.glob(f"{PART_PREFIX}{BLOB_PREFIX}*")  # of replicas that died while they wrote
            files = (*self._directory.glob(f"{BLOB_PREFIX}*"), *parts)
            return [file.name for file in files if _written_at(file) < unix_seconds]


def _written_at(file: Path) -> float:
    """Unix seconds; of a file that is gone meanwhile: never."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return math.inf


@contextlib.contextmanager
def _reaching_store() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _store_trouble(error) from error


def _store_trouble(error: OSError) -> Unavailable:
    cause = os.strerror(error.errno) if error.errno else type(error).__name__
    return Unavailable(f"the shared store cannot be used for payloads now ({cause})")


class PayloadStore:
    def __init__(self, redis: Redis, blobs: BlobStore, *, redis_limit: int = REDIS_LIMIT_BYTES) -> None:
        self._redis = cast("Any", redis)
        self._blobs = blobs
        self._limit = redis_limit

    async def prepare(self, pool: str, key: str, payload: bytes) -> Pending:
        """A large payload is written to the shared store now; the segments of others go with the admission."""
        if not payload:
            return NOTHING
        if len(payload) > self._limit:
            name = blob_name(pool, key)
            await self._blobs.put(name, payload)
            return Pending(Upload(name, 1), {})
        name = uuid.uuid4().hex
        parts = [payload[at : at + SEGMENT_BYTES] for at in range(0, len(payload), SEGMENT_BYTES)]
        segments = {keys.payload(pool, name, index): part for index, part in enumerate(parts)}
        return Pending(Upload(name, len(parts)), segments)

    async def read(self, pool: str, upload: Upload, start: int, end: int) -> bytes:
        """Bytes [start, end) of a payload. Raises ContractViolation when a part is missing, Unavailable."""
        if start == end:
            return b""
        if upload.name.startswith(BLOB_PREFIX):
            return await self._blobs.read(upload.name, start, end)
        first, last = start // SEGMENT_BYTES, (end - 1) // SEGMENT_BYTES
        names = [keys.payload(pool, upload.name, index) for index in range(first, last + 1)]
        with reaching_redis():
            found = await self._redis.mget(names)
        if None in found:
            raise ContractViolation(f"payload {upload.name} has lost a segment")
        offset = first * SEGMENT_BYTES
        data: bytes = b"".join(found)
        return data[start - offset : end - offset]

    async def discard(self, pending: Pending) -> None:
        """For a command that is certainly not admitted: its payload must not fill the store until it expires.

        Where that cannot be done now, it expires.
        """
        with contextlib.suppress(Unavailable):
            if pending.upload.name.startswith(BLOB_PREFIX):
                await self._blobs.delete(pending.upload.name)
            elif pending.segments:
                with reaching_redis():
                    await self._redis.unlink(*pending.segments)

    async def discard_repeated(self, pool: str, key: str, pending: Pending) -> None:
        """For a command that was admitted before. Maybe by this very attempt, whose first answer was lost: then
        its row names this upload, which stays."""
        with contextlib.suppress(Unavailable):
            if pending.upload.name and pending.upload.name not in (await self._uploads_of(pool, [key]))[0]:
                await self.discard(pending)

    async def drop_orphans(self, pool: str, age_seconds: float = ORPHAN_SECONDS) -> int:
        """Deletes files of commands that were never admitted, or whose rows no longer name them."""
        orphans = await self.orphans(pool, age_seconds)
        for name in orphans:
            await self._blobs.delete(name)
        return len(orphans)

    async def orphans(self, pool: str, age_seconds: float = ORPHAN_SECONDS) -> list[str]:
        """What `drop_orphans` would delete now. Raises Unavailable."""
        owned = [name for name in await self._blobs.older_than(age_seconds) if _owner(name)[0] == pool]
        orphans = list[str]()
        for at in range(0, len(owned), NAMES_PER_READ):
            names = owned[at : at + NAMES_PER_READ]
            uploads = await self._uploads_of(pool, [_owner(name)[1] for name in names])
            orphans += [name for name, named in zip(names, uploads, strict=True) if name not in named]
        return orphans

    async def _uploads_of(self, pool: str, request_keys: Sequence[str]) -> list[list[str]]:
        """What each row names, in one round trip."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for key in request_keys:
                pipe.hmget(keys.req(pool, key), ("upload", "result_upload"))
            rows = await pipe.execute()
        return [[name.decode() for name in named if name is not None] for named in rows]

    async def drop_blobs(self, pool: str, limit: int = 100) -> int:
        """Deletes the files of commands that have settled and of results that have gone."""
        with reaching_redis():
            names = await self._redis.lrange(keys.dropped_blobs(pool), 0, limit - 1)
        for name in names:
            await self._blobs.delete(name.decode())
        if names:
            with reaching_redis():
                await self._redis.ltrim(keys.dropped_blobs(pool), len(names), -1)
        return len(names)


def _owner(blob: str) -> tuple[str, str]:
    """(pool, request key) of a file named by `blob_name`."""
    pool, _, rest = blob.removeprefix(PART_PREFIX).removeprefix(BLOB_PREFIX).partition(".")
    return pool, rest.partition(".")[0]
