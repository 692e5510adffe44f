"""Read-only looks at a pool for the Admin service; every list is bounded."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.cells import known_cells
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

    async def cell(self, pool: str, cell: str) -> Row:
        return await self._hash(keys.cell(pool, cell))

    async def clock(self) -> Row:
        return await self._hash(keys.CLOCK)

    async def replicas(self) -> Row:
        """Replica -> JSON: layout, library, seen_ms."""
        return await self._hash(keys.REPLICAS)

    async def counters(self, pool: str) -> Row:
        return await self._hash(keys.counters(pool))

    async def cells(self, pool: str) -> list[str]:
        return await known_cells(self._redis, pool)

    async def slots(self, pool: str, cell: str) -> Row:
        return await self._hash(keys.slots(pool, cell))

    async def running_units(self, pool: str) -> list[tuple[str, str]]:
        """(unit id, incarnation of its trainer), by unit."""
        with reaching_redis():
            units = sorted(_texts(await self._redis.smembers(keys.running_units(pool))))
        rows = await self._rows([keys.unit(pool, unit) for unit in units], ("incarnation",))
        return [(unit, row["incarnation"]) for unit, row in zip(units, rows, strict=True)]

    async def busy_models(self, pool: str) -> list[str]:
        """Models with commands to look at: ready, waiting for a slot, or for a missing command."""
        cells = await self.cells(pool)
        names = [of(pool, cell) for cell in cells for of in (keys.active, keys.creates, keys.seekers, keys.recovering)]
        return sorted(await self._members([keys.gaps(pool), *names]))

    async def live_models(self, pool: str) -> list[str]:
        """Every model that is not closed: with a slot, without one, or waiting for its first."""
        found = [await self.models_of(pool, cell) for cell in await self.cells(pool)]
        return sorted({model for models in found for model in models})

    async def models_of(self, pool: str, cell: str) -> set[str]:
        """Those of them that live in one cell."""
        slots = (await self.slots(pool, cell)).values()
        holders = {holder for holder in slots if holder and not holder.startswith(("unload:", "quarantine:"))}
        return holders | await self._members([keys.unseated(pool, cell), keys.creates(pool, cell)])

    async def breaker(self, pool: str) -> str:
        """Why a trainer gets no work; "" = all do."""
        cells = [await self.cell(pool, cell) for cell in await self.cells(pool)]
        return "; ".join(cell["broken_reason"] for cell in cells if cell.get("broken_reason"))

    async def recovery(self, pool: str) -> tuple[int, int]:
        """Models without a slot, and those whose slot is being filled."""
        cells = await self.cells(pool)
        unseated = await self._counts([keys.unseated(pool, cell) for cell in cells])
        return unseated, await self._counts([keys.recovering(pool, cell) for cell in cells])

    async def waiting_creates(self, pool: str) -> int:
        return await self._counts([keys.creates(pool, cell) for cell in await self.cells(pool)])

    async def _members(self, zsets: Iterable[str]) -> set[str]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in zsets:
                pipe.zrange(name, 0, -1)
            found = await pipe.execute()
        return {model for names in found for model in _texts(names)}

    async def _counts(self, zsets: Iterable[str]) -> int:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in zsets:
                pipe.zcard(name)
            return sum(int(count) for count in await pipe.execute())

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
