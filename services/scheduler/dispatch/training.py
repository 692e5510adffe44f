"""The training path: admission, model book, and the leadership of every pool."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from services.common.errors import Unavailable
from services.scheduler import metrics
from services.scheduler.dispatch.leadership import Leadership
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.dispatch.training_parts import TrainingParts
from services.scheduler.ports import Admission, ModelBook
from services.scheduler.store import keys
from services.scheduler.store.leases import LeaseStore
from services.scheduler.store.outages import reaching_redis
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

DISCOVER_SECONDS = 1.0
DRAIN_SECONDS = 10.0
RELEASE_SECONDS = 3.0


class Training:
    """`admission` and `models` work on every replica; `run` dispatches where the lease is held."""

    def __init__(self, parts: TrainingParts) -> None:
        self.admission: Admission = parts.admission
        self.models: ModelBook = parts.models
        self._driver = parts.driver
        self._leadership = Leadership(
            LeaseStore(parts.functions), parts.replica, parts.tasks, ttl_ms=parts.lease_ttl_ms
        )
        self._redis = cast("Any", parts.redis)
        self._campaigns: dict[str, asyncio.Task[None]] = {}
        self._started = False
        self._stopped = asyncio.Event()
        parts.notices.on_ready(self._ready)
        parts.notices.on_reconnect(self._driver.wake_all)

    def _ready(self, pool: str, kind: str) -> None:
        if kind == "trainer":
            self._driver.trainers_changed(pool)
            if self._started and not self._stopped.is_set():
                self._join(pool)
        elif kind != "sample":
            self._driver.wake(pool)
        if kind == "lease":
            self._leadership.wake(pool)

    def _join(self, pool: str) -> None:
        """A pool of which this replica hears for the first time, too."""
        if pool not in self._campaigns:
            self._campaigns[pool] = asyncio.create_task(self._leadership.campaign(pool))

    async def run(self) -> None:
        """Campaigns for the lease of every pool there is; until cancelled or stopped. Raises what a campaign raised."""
        self._started = True
        while not self._stopped.is_set():
            await self._discover()
            for task in [task for task in self._campaigns.values() if task.done()]:
                task.result()
            await wait_at_most(self._stopped, DISCOVER_SECONDS)

    async def _discover(self) -> None:
        try:
            with reaching_redis():
                names = await self._redis.smembers(keys.POOLS)
        except Unavailable as error:
            log.warning("cannot look for pools: %s", error)
            return
        pools = sorted(name.decode() for name in names)
        metrics.pools_known(pools)
        for pool in pools:
            self._join(pool)

    async def stop(self) -> None:
        """Finishes running units (bounded), then releases every lease."""
        self._stopped.set()
        self._leadership.retire()
        await self._driver.drain(DRAIN_SECONDS)
        campaigns = list(self._campaigns.values())
        if campaigns:
            await asyncio.wait(campaigns, timeout=RELEASE_SECONDS)
        await end_tasks(campaigns)
