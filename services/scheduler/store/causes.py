"""Why a tenant's requests failed of late, as functions/_causes.lua keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis

LONG = "the cause is too long for this list; retrieve the request to read it"


@dataclass(frozen=True, slots=True)
class Cause:
    """`times` failures in a row of `parent` (a model or sampling session) with one `text`; the ids are of the last."""

    unix_ms: int
    request_id: str
    op: str
    parent: str
    times: int
    text: str
    user: bool


class CauseReader:
    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def recent(self, pools: Sequence[str], tenant_id: str, limit: int) -> list[Cause]:
        """Of all pools, the newest first. Raises Unavailable."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for pool in pools:
                pipe.lrange(keys.causes(pool, tenant_id), 0, limit - 1)
            lists = await pipe.execute() if pools else []
        found = [cause_of(entry) for entries in lists for entry in entries]
        return sorted(found, key=lambda cause: cause.unix_ms, reverse=True)[:limit]


def cause_of(entry: bytes) -> Cause:
    line, _, result = entry.partition(b"\n")
    told = json.loads(line)
    failure = types.Result.FromString(result).failure if result else types.Failure(message=LONG)
    return Cause(
        unix_ms=int(told["t"]),
        request_id=told["r"],
        op=told["o"],
        parent=told["m"],
        times=int(told["n"]),
        text=failure.message,
        user=failure.category == types.FAILURE_CATEGORY_USER,
    )
