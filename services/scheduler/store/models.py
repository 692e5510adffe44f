"""Reading model rows and what their queues wait for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.cells import FIRST_CELL
from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis

_FIELDS = ("tenant", "session", "state", "reason", "slot", "load_number", "base_model", "layout", "user_metadata")
_MORE = ("next_seq", "ending", "last_request_ms", "created_ms")
_RECOVERY = ("phase", "base", "base_pos", "applied", "log_end", "log_bytes", "barrier_pos", "cell")


@dataclass(frozen=True, slots=True)
class ModelRow:
    model_id: str
    tenant: str
    session: str
    state: str
    reason: str
    slot: int | None
    load_number: int
    base_model: str
    layout: types.AdapterLayout
    user_metadata: str
    next_seq: int
    ending: bool
    last_request_ms: int
    created_ms: int
    phase: str = ""  # functions/_seats.lua
    base: Mapping[str, Any] = field(default_factory=dict)  # functions/_log.lua
    base_pos: int = 0
    applied: int = 0
    log_end: int = 0
    log_bytes: int = 0
    barrier_pos: int = 0
    cell: str = FIRST_CELL


class ModelReader:
    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def row(self, pool: str, model_id: str) -> ModelRow | None:
        with reaching_redis():
            values = await self._redis.hmget(keys.model(pool, model_id), (*_FIELDS, *_MORE, *_RECOVERY))
        if values[0] is None:
            return None
        return _row(model_id, [value or b"" for value in values])

    async def bases(self, pool: str, model_ids: Sequence[str]) -> list[str]:
        """The directory each one's log begins at, in their order and in one round trip; "" = none (any more)."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for model_id in model_ids:
                pipe.hmget(keys.model(pool, model_id), ("state", "base"))
            rows = await pipe.execute() if model_ids else []
        texts = [base if state and state != b"closed" else None for state, base in rows]
        return [str(json.loads(text).get("directory", "")) if text else "" for text in texts]

    async def artifact(self, pool: str, key: str) -> str:
        """The name a captured save has."""
        with reaching_redis():
            name = await self._redis.hget(keys.req(pool, key), "artifact")
        return (name or b"").decode()

    async def missing(self, pool: str, model_id: str, seq: int) -> bool:
        """Whether the command `seq` has not arrived."""
        with reaching_redis():
            return not await self._redis.hexists(keys.queue(pool, model_id), str(seq))


def _row(model_id: str, values: list[bytes]) -> ModelRow:
    tenant, session, state, reason, slot, load_number, base_model, layout, metadata, next_seq = values[:10]
    return ModelRow(
        model_id=model_id,
        tenant=tenant.decode(),
        session=session.decode(),
        state=state.decode(),
        reason=reason.decode(),
        slot=int(slot) if slot else None,
        load_number=int(load_number or 0),
        base_model=base_model.decode(),
        layout=types.AdapterLayout.FromString(layout),
        user_metadata=metadata.decode(),
        next_seq=int(next_seq or 0),
        ending=values[10] == b"1",
        last_request_ms=int(values[11] or 0),
        created_ms=int(values[12] or 0),
        phase=values[13].decode(),
        base=json.loads(values[14]) if values[14] else {},
        base_pos=int(values[15] or 0),
        applied=int(values[16] or 0),
        log_end=int(values[17] or 0),
        log_bytes=int(values[18] or 0),
        barrier_pos=int(values[19] or 0),
        cell=values[20].decode() or FIRST_CELL,
    )
