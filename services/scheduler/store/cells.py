"""The cells of a pool, and models that go from one to others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

from redis.asyncio import Redis

from services.common.cells import FIRST_CELL
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

Which = Literal["all", "creates", "crowded"]


class CellStore:
    """Every method that writes raises StaleFence and Unavailable."""

    def __init__(self, redis: Redis, functions: Functions, retention_ms: int) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._retention = retention_ms

    async def known(self, pool: str) -> list[str]:
        """Every cell that may hold something, the first one always."""
        return await known_cells(self._redis, pool)

    async def driven(self, pool: str, cell: str) -> bool:
        """Whether the cell had a trainer that was not given up."""
        with reaching_redis():
            return bool(await self._redis.hexists(keys.cell(pool, cell), "incarnation"))

    async def lose(self, pool: str, term: int, cell: str) -> int:
        """The cell has no trainer any more, what it held is lost; answers how many slots were held.

        Its publications must have been fenced before.
        """
        return int(await self._call("cell_lose", [keys.pool_prefix(pool)], term, self._retention, cell))

    async def move(self, pool: str, term: int, cell: str, which: Which, others: Iterable[str]) -> int:
        """Models that wait in the cell without a slot go to `others`, each to the emptiest; answers how many went.

        `which`: all of them, those that never had a slot (creates), or of these as many as others have room for
        and this one has not (crowded).
        """
        arguments = (term, self._retention, cell, which, " ".join(others))
        return int(await self._call("cell_move", [keys.pool_prefix(pool)], *arguments))

    async def forget(self, pool: str, term: int, cell: str) -> bool:
        """A cell without models that had no trainer for long is gone."""
        return bool(await self._call("cell_forget", [keys.pool_prefix(pool)], term, self._retention, cell))


async def known_cells(redis: Any, pool: str) -> list[str]:
    """The first cell, then the others by name. Raises Unavailable."""
    with reaching_redis():
        names = await redis.smembers(keys.cells(pool))
    return [FIRST_CELL, *sorted(name.decode() for name in names)]
