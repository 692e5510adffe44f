"""Samples as work of the lease holder: one run per pool and term."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.pool_run import PoolRun
from services.scheduler.sampling.routing import Router
from services.scheduler.store.notices import Notices
from services.scheduler.store.sampling import SamplingStore


class SampleDispatcher:
    """Implements ports.LeaderTask."""

    def __init__(
        self,
        store: SamplingStore,
        fleet: Fleet,
        notices: Notices,
        limits: SamplingLimits,
        router: Router,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._limits = limits
        self._router = router
        self._weights = weights
        self._wakes: dict[str, asyncio.Event] = {}
        self._runs: dict[str, PoolRun] = {}
        notices.on_ready(self._ready)
        notices.on_settled(self._settled)
        notices.on_reconnect(lambda: self._wake(list(self._wakes)))

    def waiting(self, pool: str) -> bool:
        """Whether a sample waits for a sampler here."""
        return (run := self._runs.get(pool)) is not None and run.waiting > 0

    def _ready(self, pool: str, work: str) -> None:
        if work == "requeued" and (run := self._runs.get(pool)) is not None:
            run.look_again()
        if work != "train":  # by far the most frequent, and nothing for samplers
            self._wake([pool])

    async def run(self, pool: str, term: int) -> None:
        wake = self._wakes[pool] = asyncio.Event()
        run = self._runs[pool] = PoolRun(
            pool, term, self._store, self._fleet, self._limits, self._router, wake, self._weights
        )
        try:
            await run.run()
        finally:
            self._wakes.pop(pool, None)
            self._runs.pop(pool, None)

    def _settled(self, pool: str, request_ids: list[str]) -> None:
        if (run := self._runs.get(pool)) is not None:
            run.settled(request_ids)

    def _wake(self, pools: list[str]) -> None:
        for pool in pools:
            if (wake := self._wakes.get(pool)) is not None:
                wake.set()
