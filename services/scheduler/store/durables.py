"""Which durable points run, and whose files may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from redis.asyncio import Redis

from services.common.cells import FIRST_CELL
from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis


class DurableBook:
    """Raises Unavailable."""

    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def running(self, pool: str) -> dict[str, str]:
        """Unit ids of durable points that are captured and not settled, by model."""
        with reaching_redis():
            found = await self._redis.hgetall(keys.durables_running(pool))
        return {model.decode(): unit.decode() for model, unit in found.items()}

    async def due(self, pool: str, model_ids: Sequence[str]) -> list[int | None]:
        """Not before which time each model's next durable point is taken, unix ms; None = none is due."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for model_id in model_ids:
                pipe.hget(keys.model(pool, model_id), "cell")
            cells = [(cell or FIRST_CELL.encode()).decode() for cell in await pipe.execute()] if model_ids else []
            for model_id, cell in zip(model_ids, cells, strict=True):
                pipe.zscore(keys.durables(pool, cell), model_id)
            scores = await pipe.execute() if model_ids else []
        return [None if score is None else int(score) for score in scores]

    async def dropped(self, pool: str, limit: int) -> list[str]:
        """Version directories that are no base any more, relative to the store's root."""
        with reaching_redis():
            return [name.decode() for name in await self._redis.lrange(keys.dropped_durables(pool), 0, limit - 1)]

    async def forget(self, pool: str, count: int) -> None:
        """The first `count` of them are gone."""
        if count:
            with reaching_redis():
                await self._redis.ltrim(keys.dropped_durables(pool), count, -1)
