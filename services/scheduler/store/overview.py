"""Read-only looks at a pool for the Admin service; every list is bounded."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.connection import scan_keys, server_now_ms
from services.scheduler.store.outages import reaching_redis

SCAN_COUNT = 500
SCANNED_KEYS = 500_000
QUEUE_SAMPLE = 256

Row = Mapping[str, str]

# Everything of a request row that is small text.
REQUEST_FIELDS = (
    "request_id",
    "tenant",
    "session",
    "parent",
    "kind",
    "op",
    "seq",
    "arrival",
    "state",
    "traceparent",
    "units",
    "datums",
    "issued",
    "admitted_ms",
    "issued_ms",
    "captured_ms",
    "settled_ms",
    "delivered_ms",
    "result_bytes",
)


class Overview:
    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def now_ms(self) -> int:
        with reaching_redis():
            return await server_now_ms(self._redis)

    async def lease(self, pool: str) -> Row:
        return await self._hash(keys.lease(pool))

    async def cell(self, pool: str) -> Row:
        return await self._hash(keys.cell(pool))

    async def clock(self) -> Row:
        return await self._hash(keys.CLOCK)

    async def replicas(self) -> Row:
        """Replica -> JSON: layout, library, seen_ms."""
        return await self._hash(keys.REPLICAS)

    async def counters(self, pool: str) -> Row:
        return await self._hash(keys.counters(pool))

    async def slots(self, pool: str) -> Row:
        return await self._hash(keys.slots(pool))

    async def running_units(self, pool: str) -> list[str]:
        with reaching_redis():
            return _texts(await self._redis.smembers(keys.running_units(pool)))

    async def busy_models(self, pool: str) -> list[str]:
        """Models with commands to look at: ready, waiting for a slot, or for a missing command."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            waiting = (keys.seekers(pool), keys.recovering(pool))
            for name in (keys.active(pool), keys.creates(pool), keys.gaps(pool), *waiting):
                pipe.zrange(name, 0, -1)
            found = await pipe.execute()
        return sorted({model for names in found for model in _texts(names)})

    async def live_models(self, pool: str) -> list[str]:
        """Every model that is not closed: with a slot, without one, or waiting for its first."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hvals(keys.slots(pool))
            pipe.zrange(keys.unseated(pool), 0, -1)
            pipe.zrange(keys.creates(pool), 0, -1)
            slots, unseated, creates = await pipe.execute()
        holders = {holder for holder in _texts(slots) if holder and not holder.startswith(("unload:", "quarantine:"))}
        return sorted(holders | {*_texts(unseated), *_texts(creates)})

    async def breaker(self, pool: str) -> str:
        """Why the trainer gets no work; "" = it does."""
        return (await self.cell(pool)).get("broken_reason", "")

    async def recovery(self, pool: str) -> tuple[int, int]:
        """Models without a slot, and those whose slot is being filled."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zcard(keys.unseated(pool))
            pipe.zcard(keys.recovering(pool))
            unseated, recovering = await pipe.execute()
        return int(unseated), int(recovering)

    async def waiting_creates(self, pool: str) -> int:
        with reaching_redis():
            return int(await self._redis.zcard(keys.creates(pool)))

    async def depths(self, pool: str, model_ids: Iterable[str]) -> list[int]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for model_id in model_ids:
                pipe.hlen(keys.queue(pool, model_id))
            return [int(depth) for depth in await pipe.execute()]

    async def models(self, pool: str, model_ids: Iterable[str], fields: tuple[str, ...]) -> list[Row]:
        return await self._rows([keys.model(pool, model_id) for model_id in model_ids], fields)

    async def queued(self, pool: str, model_id: str) -> tuple[set[int], list[Row]]:
        """Sequence ids waiting in a model's queue, and the rows of the first of them."""
        with reaching_redis():
            queue = {
                int(seq): key.decode() for seq, key in (await self._redis.hgetall(keys.queue(pool, model_id))).items()
            }
        first = [keys.req(pool, queue[seq]) for seq in sorted(queue)[:QUEUE_SAMPLE]]
        return set(queue), await self._rows(first, ("admitted_ms", "seq"))

    async def requests(self, pool: str, state: str, limit: int, after: int = 0) -> list[Row]:
        """Request rows in `state` ("" = any) behind arrival number `after`, the oldest first; looks at a bounded
        number of keys.
        """
        oldest: list[tuple[int, str]] = []
        cursor = 0
        for _ in range(SCANNED_KEYS // SCAN_COUNT):
            with reaching_redis():
                cursor, names = await scan_keys(self._redis, cursor, keys.req(pool, "*"), SCAN_COUNT)
            oldest = heapq.nsmallest(limit, {*oldest, *await self._arrivals(_texts(names), state, after)})
            if cursor == 0:
                break
        rows = await self._rows([name for _, name in oldest], REQUEST_FIELDS)
        return [row for row in rows if row["request_id"]]

    async def _arrivals(self, names: list[str], state: str, after: int) -> list[tuple[int, str]]:
        rows = zip(names, await self._rows(names, ("arrival", "state")), strict=True)
        found = [(int(row["arrival"] or 0), name) for name, row in rows if state in ("", row["state"])]
        return [(arrival, name) for arrival, name in found if arrival > after]

    async def request(self, pool: str, key: str) -> Row:
        return (await self._rows([keys.req(pool, key)], (*REQUEST_FIELDS, "events")))[0]

    async def _hash(self, name: str) -> Row:
        with reaching_redis():
            found = await self._redis.hgetall(name)
        return {field.decode(): value.decode(errors="replace") for field, value in found.items()}

    async def _rows(self, names: list[str], fields: tuple[str, ...]) -> list[Row]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(name, fields)
            rows = await pipe.execute() if names else []
        return [dict(zip(fields, ((value or b"").decode() for value in row), strict=True)) for row in rows]


def _texts(values: Iterable[bytes]) -> list[str]:
    return [value.decode() for value in values]
