"""Sampling sessions and samples in Redis."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.core.prefixes import Starts, read
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.payloads import SEGMENT_BYTES
from services.scheduler.store.sequences import SequenceStore

_SESSION_FIELDS = ("tenant", "session", "base_model", "model_path", "adapter_name", "adapter_path")
_WAITING_FIELDS = (
    "tenant",
    "adapter_name",
    "adapter_path",
    "traceparent",
    "request_id",
    "admitted_ms",
    "sequences",
    "starts",
)


@dataclass(frozen=True, slots=True)
class SamplingSession:
    """A pinned version (or the base model, without adapter) and who may sample from it."""

    sampling_session_id: str
    tenant_id: str
    session_id: str
    base_model: str
    model_path: str
    adapter_name: str
    adapter_path: str

    def same_target(self, base_model: str, model_path: str) -> bool:
        return (self.base_model, self.model_path) == (base_model, model_path)


class SampleToAdmit(NamedTuple):
    sampling_session_id: str
    key: str
    tenant_id: str
    fingerprint: str
    seq_id: int
    sequence_ids: str
    command: bytes
    traceparent: str
    failed_result: bytes  # not empty: it fails at once with this result
    limits: str = ""  # of its tenant, see tenancy.limits
    starts: str = ""  # of its prompt, see core.prefixes


@dataclass(frozen=True, slots=True)
class WaitingSample:
    key: str
    arrival: int
    request_id: str
    tenant_id: str
    adapter: types.AdapterRef | None
    traceparent: str
    admitted_ms: int
    sequences: int
    sampler: str = ""  # where it runs, "" = nowhere
    starts: Starts = Starts((), ())


class SamplingStore:
    def __init__(self, redis: Redis, functions: Functions, sequences: SequenceStore) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._sequences = sequences

    async def open(self, pool: str, session: SamplingSession) -> SamplingSession:
        """Write-once: the session that holds under this id."""
        values = (
            session.tenant_id,
            session.session_id,
            session.base_model,
            session.model_path,
            session.adapter_name,
            session.adapter_path,
        )
        flat = [part for item in zip(_SESSION_FIELDS, values, strict=True) for part in item]
        await self._call("sampling_open", [keys.pool_prefix(pool)], session.sampling_session_id, *flat)
        held = await self.session(pool, session.sampling_session_id)
        return held or session

    async def session(self, pool: str, sampling_session_id: str) -> SamplingSession | None:
        with reaching_redis():
            values = await self._redis.hmget(keys.sampling_session(pool, sampling_session_id), _SESSION_FIELDS)
        if values[0] is None:
            return None
        return SamplingSession(sampling_session_id, *((value or b"").decode() for value in values))

    async def close(self, pool: str, sampling_session_id: str, reason: str, keep_ms: int) -> list[str]:
        """No further sample is admitted; answers the request keys of those still open."""
        prefix = [keys.pool_prefix(pool)]
        open_keys = await self._call("sampling_close", prefix, sampling_session_id, reason, keep_ms)
        return [key.decode() for key in open_keys]

    async def admit(self, pool: str, sample: SampleToAdmit, limit: int, retention_ms: int) -> tuple[str, list[str]]:
        """(request id, sequence ids). Raises UnknownId, Forbidden, KeyConflict, Busy."""
        request_id, sequence_ids = await self._call(
            "sampling_admit",
            [keys.pool_prefix(pool)],
            sample.sampling_session_id,
            sample.key,
            sample.tenant_id,
            sample.fingerprint,
            str(sample.seq_id),
            sample.sequence_ids,
            sample.command,
            sample.traceparent,
            limit,
            retention_ms,
            sample.failed_result,
            sample.limits,
            sample.starts,
        )
        return request_id.decode(), sequence_ids.decode().split()

    async def waiting(self, pool: str, after_arrival: int, limit: int) -> list[WaitingSample]:
        """Waiting samples in arrival order, from the one behind `after_arrival`."""
        flat = await self._call("sampling_waiting", [keys.pool_prefix(pool)], after_arrival, limit)
        pairs = [(key.decode(), int(score)) for key, score in zip(flat[::2], flat[1::2], strict=True)]
        return await self._rows(pool, pairs)

    async def running(self, pool: str) -> list[WaitingSample]:
        """Samples some lease holder has sent to a sampler and not settled."""
        with reaching_redis():
            where = await self._redis.hgetall(keys.running_samples(pool))
        found = await self._rows(pool, [(key.decode(), 0) for key in where])
        return [replace(sample, sampler=where[sample.key.encode()].decode()) for sample in found]

    async def waiting_before(self, pool: str, key: str) -> int | None:
        """How many waiting samples of the pool arrived before it; None = it does not wait."""
        with reaching_redis():
            rank = await self._redis.zrank(keys.pending_samples(pool), key)
        return None if rank is None else int(rank)

    async def running_counts(self, pool: str) -> dict[str, int]:
        """Sampler id -> samples running there."""
        with reaching_redis():
            samplers = await self._redis.hvals(keys.running_samples(pool))
        names = [sampler.decode() for sampler in samplers]
        return {name: names.count(name) for name in set(names)}

    async def start(self, pool: str, term: int, placements: Sequence[tuple[str, str]]) -> list[types.Command | None]:
        """Marks (key, sampler id) pairs as running; None = settled meanwhile. Raises StaleFence."""
        flat = [part for pair in placements for part in pair]
        commands = await self._call("sampling_start", [keys.pool_prefix(pool)], str(term), *flat)
        return [types.Command.FromString(data) if data else None for data in commands]

    async def requeue(self, pool: str, key: str) -> bool:
        """False = it is settled meanwhile."""
        return bool(await self._call("sampling_requeue", [keys.pool_prefix(pool)], key))

    async def settle(
        self,
        pool: str,
        key: str,
        result: types.Result,
        retention_ms: int,
        records: Sequence[types.SequenceRecord] = (),
    ) -> tuple[bool, str]:
        """(this settlement won, the sampler it ran on or ""). `records`: one per sequence, or none."""
        recording = await self._sequences.write(pool, records)
        state = "failed" if result.WhichOneof("outcome") == "failure" else "done"
        data = result.SerializeToString()
        upload, segments = "", 0
        if len(data) > SEGMENT_BYTES:
            upload, segments = await self._store_segments(pool, data, retention_ms)
        won, sampler = await self._call(
            "sampling_settle",
            [keys.pool_prefix(pool)],
            key,
            state,
            b"" if upload else data,
            retention_ms,
            upload,
            segments,
            len(data),
            recording,
            len(records),
        )
        return bool(won), sampler.decode()

    async def _store_segments(self, pool: str, data: bytes, keep_ms: int) -> tuple[str, int]:
        upload = uuid.uuid4().hex
        segments = [data[at : at + SEGMENT_BYTES] for at in range(0, len(data), SEGMENT_BYTES)]
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for index, segment in enumerate(segments):
                pipe.set(keys.payload(pool, upload, index), segment, px=keep_ms)
            await pipe.execute()
        return upload, len(segments)

    async def sweep(self, pool: str, limit: int, keep_ms: int) -> int:
        return int(await self._call("sampling_sweep", [keys.pool_prefix(pool)], limit, keep_ms))

    async def _rows(self, pool: str, pairs: Sequence[tuple[str, int]]) -> list[WaitingSample]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for key, _ in pairs:
                pipe.hmget(keys.req(pool, key), _WAITING_FIELDS)
            rows = await pipe.execute() if pairs else []
        return [_waiting(pair, row) for pair, row in zip(pairs, rows, strict=True) if row[0] is not None]


def _waiting(pair: tuple[str, int], row: Sequence[bytes | None]) -> WaitingSample:
    tenant, name, path, traceparent, request_id, admitted, sequences, starts = (
        (value or b"").decode() for value in row
    )
    return WaitingSample(
        key=pair[0],
        arrival=pair[1],
        request_id=request_id,
        tenant_id=tenant,
        adapter=types.AdapterRef(name=name, path=path) if name else None,
        traceparent=traceparent,
        admitted_ms=int(admitted or 0),
        sequences=int(sequences or 1),
        starts=read(starts),
    )
