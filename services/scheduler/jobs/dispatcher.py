"""Jobs as work of the lease holder: one run per pool and term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from services.scheduler.jobs.pool_jobs import PoolJobs, SamplesWait
from services.scheduler.jobs.task_run import Tools
from services.scheduler.store.notices import Notices

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0


class JobDispatcher:
    """Implements ports.LeaderTask."""

    def __init__(
        self, tools: Tools, notices: Notices, weights: Mapping[str, float] | None = None, *, interactive: SamplesWait
    ) -> None:
        self._tools = tools
        self._weights = weights
        self._interactive = interactive
        self._runs: dict[str, PoolJobs] = {}
        notices.on_ready(self._ready)
        notices.on_reconnect(self._reconnected)

    async def run(self, pool: str, term: int) -> None:
        """A bug in jobs must not take the pool's lease, and its training, along: jobs begin anew then."""
        while True:
            try:
                return await self._run(pool, term)
            except Exception:  # noqa: BLE001 - the boundary between the parts of a leader
                log.exception("pool %s: running jobs failed unexpectedly; it goes on in %g s", pool, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _run(self, pool: str, term: int) -> None:
        run = self._runs[pool] = PoolJobs(pool, term, self._tools, self._weights, self._interactive)
        try:
            await run.run()
        finally:
            self._runs.pop(pool, None)

    def _ready(self, pool: str, work: str) -> None:
        if work in ("job", "job_cancelled") and (run := self._runs.get(pool)) is not None:
            run.wake(recheck=work == "job_cancelled")

    def _reconnected(self) -> None:
        for run in self._runs.values():
            run.wake(recheck=True)
