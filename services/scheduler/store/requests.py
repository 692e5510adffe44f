"""Reading request rows and results: training commands and samples alike."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContractViolation
from services.common.ids import RequestId
from services.scheduler.store import keys
from services.scheduler.store.connection import server_now_ms
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.payloads import BLOB_PREFIX, BlobStore

_HEAD = ("request_id", "tenant", "state", "expires_ms", "result_bytes", "op", "kind", "parent", "seq")
_RESULT = ("result", "result_upload", "result_segments", "result_bytes")
SETTLED_STATES = ("done", "failed")


@dataclass(frozen=True, slots=True)
class Head:
    """What decides how a request is answered; ages by Redis TIME."""

    tenant_id: str
    state: str
    result_bytes: int
    op: str
    kind: str
    parent: str
    seq: int

    @property
    def settled(self) -> bool:
        return self.state in SETTLED_STATES


class RequestReader:
    def __init__(self, redis: Redis, functions: Functions, blobs: BlobStore) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._blobs = blobs

    async def readings(self, requests: Sequence[RequestId], limit: int) -> list[Reading]:
        """In their order: heads, and results of settled requests up to `limit` bytes; one call per pool."""
        pools: dict[str, list[RequestId]] = {}
        for request in requests:
            pools.setdefault(request.pool, []).append(request)
        answers = await asyncio.gather(*(self._read_pool(pool, asked, limit) for pool, asked in pools.items()))
        found = dict(pair for pairs in answers for pair in pairs)
        return [found[request] for request in requests]

    async def _read_pool(self, pool: str, requests: Sequence[RequestId], limit: int) -> list[tuple[RequestId, Reading]]:
        asked = [request.key for request in requests]
        now_ms, rows = await self._call("requests_read", [keys.pool_prefix(pool)], limit, *asked)
        return [(r, _reading(r, row, int(now_ms))) for r, row in zip(requests, rows, strict=True)]

    async def heads(self, requests: Sequence[RequestId]) -> list[Head | None]:
        """None where the id never existed, is of an earlier generation, or has expired."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for request in requests:
                pipe.hmget(keys.req(request.pool, request.key), _HEAD)
            now_ms, rows = await asyncio.gather(server_now_ms(self._redis), pipe.execute())
        return [_head(request, row, now_ms) for request, row in zip(requests, rows, strict=True)]

    async def results(self, requests: Sequence[RequestId]) -> list[ResultParts]:
        """One pipeline; the stored forms of results, to be put together by services/scheduler/results.py."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for request in requests:
                pipe.hmget(keys.req(request.pool, request.key), _RESULT)
                pipe.hgetall(keys.outputs(request.pool, request.key))
            answers = await pipe.execute() if requests else []
        return [_parts(row, outputs) for row, outputs in zip(answers[::2], answers[1::2], strict=True)]

    async def uploaded(self, pool: str, parts: ResultParts) -> bytes | None:
        """A large result out of its segments or its file; None when a piece of it is gone. Raises Unavailable."""
        if parts.upload.startswith(BLOB_PREFIX):
            try:
                return await self._blobs.read(parts.upload, 0, parts.size)
            except ContractViolation:
                return None
        names = [keys.payload(pool, parts.upload, index) for index in range(parts.segments)]
        with reaching_redis():
            found: list[bytes | None] = await self._redis.mget(names)
        return None if None in found else b"".join(cast("list[bytes]", found))

    async def delivered(self, request: RequestId, grace_ms: int) -> None:
        """Its client has the whole of it: it goes after the grace. Raises Unavailable."""
        await self._call("result_delivered", [keys.pool_prefix(request.pool)], request.key, str(request), grace_ms)

    async def handed(self, pool: str, deliveries: Sequence[tuple[RequestId, int]]) -> None:
        """Small results that went to gateways, each so many ms ago. Raises Unavailable."""
        flat = [part for request, ago_ms in deliveries for part in (request.key, str(request), ago_ms)]
        await self._call("results_handed", [keys.pool_prefix(pool)], *flat)

    async def command(self, request: RequestId) -> types.Command | None:
        with reaching_redis():
            data = await self._redis.hget(keys.req(request.pool, request.key), "command")
        return None if data is None else types.Command.FromString(data)


@dataclass(frozen=True, slots=True)
class ResultParts:
    """`whole` is a serialized v1.Result; else it lies in `upload` (segments, or a file of `size` bytes) or in parts."""

    whole: bytes | None
    upload: str
    segments: int
    size: int
    batch: dict[int, bytes]  # first datum index -> serialized v1.BatchResult

    @property
    def is_uploaded(self) -> bool:
        """A later, whole answer (such as "expired") replaces what was uploaded."""
        return self.whole is None and self.upload != ""

    @property
    def missing(self) -> bool:
        return self.whole is None and not self.upload and not self.batch


@dataclass(frozen=True, slots=True)
class Reading:
    """`parts` is None while the request is pending, and for results that are read by themselves."""

    head: Head | None
    parts: ResultParts | None


def _reading(request: RequestId, row: Sequence[Any], now_ms: int) -> Reading:
    fields, whole, flat = row
    batch = {int(first): part for first, part in zip(flat[::2], flat[1::2], strict=True)}
    parts = ResultParts(whole, "", 0, 0, batch) if whole is not None or batch else None
    return Reading(_head(request, fields, now_ms), parts)


def _head(request: RequestId, row: Sequence[bytes | None], now_ms: int) -> Head | None:
    text = [(value or b"").decode() for value in row]
    request_id, tenant, state, expires, size, op, kind, parent, seq = text
    expired = 0 < int(expires or 0) <= now_ms
    if request_id != str(request) or expired:
        return None
    return Head(tenant, state, int(size or 0), op, kind, parent, int(seq or 0))


def _parts(row: Sequence[bytes | None], outputs: dict[bytes, bytes]) -> ResultParts:
    whole, upload, segments, size = row
    return ResultParts(
        whole=whole,
        upload=(upload or b"").decode(),
        segments=int(segments or 0),
        size=int(size or 0),
        batch={int(first): part for first, part in outputs.items()},
    )
