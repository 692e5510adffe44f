"""Back-pressure: above a share of Redis' maxmemory new payloads are refused, so that nothing is ever evicted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from services.common.errors import Busy
from services.scheduler import metrics
from services.scheduler.store import keys
from services.scheduler.store.connection import OUTAGES, Redis, ResponseError, on_each_node
from services.scheduler.store.outages import reaching_redis

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class MemoryGate:
    """Knows how full Redis was a second ago. The share between the mark and 1 is room to settle in."""

    def __init__(self, redis: Redis, high_water: float) -> None:
        self._redis = redis
        self._mark = high_water
        self._fill = 0.0
        metrics.redis_high_water.set(high_water)

    async def run(self) -> None:
        """Until cancelled; while Redis is away the last look stands."""
        while True:
            try:
                await self.look()
            except (*OUTAGES, ResponseError) as error:
                metrics.redis_up.set(0)
                log.debug("how full Redis is could not be read: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> float:
        """The fill of the fullest node, 0 where no maxmemory is set."""
        was, self._fill = self._fill, max(map(_fill, await on_each_node(self._redis, "INFO", "memory")))
        metrics.redis_up.set(1)
        metrics.redis_fill.set(self._fill)
        if (was >= self._mark) is not (self._fill >= self._mark):
            log.warning("Redis is %.0f %% full: new payloads are %s", self._fill * 100, self._verdict())
        return self._fill

    @property
    def closed(self) -> bool:
        return self._fill >= self._mark

    def _verdict(self) -> str:
        return "refused" if self.closed else "taken again"

    async def admit_command(self, pool: str, key: str, model_id: str, seq: str) -> None:
        """Raises Busy before the key is claimed.

        A repeat passes, and so does the command its model waits for: without it, what was accepted
        could not settle.
        """
        with reaching_redis():
            pipe: Any = self._redis.pipeline(transaction=False)
            pipe.exists(keys.req(pool, key))
            pipe.hget(keys.model(pool, model_id), "next_seq")
            known, next_seq = await pipe.execute()
        if not known and (next_seq or b"").decode() != seq:
            raise self._busy()

    async def admit_sample(self, pool: str, key: str) -> None:
        """Raises Busy before the key is claimed; a repeat passes."""
        with reaching_redis():
            known = await cast("Any", self._redis).exists(keys.req(pool, key))
        if not known:
            raise self._busy()

    def _busy(self) -> Busy:
        return Busy(
            f"the mesh's memory is {self._fill * 100:.0f} % full (new payloads stop at {self._mark * 100:.0f} %): "
            "await what you have sent, then send this again; the operator can raise Redis' maxmemory"
        )


def _fill(info: dict[str, Any]) -> float:
    most = int(info.get("maxmemory", 0))
    return int(info["used_memory"]) / most if most else 0.0
