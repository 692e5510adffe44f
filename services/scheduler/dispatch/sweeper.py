"""What only time brings about, at most once a second per pool: a ports.LeaderTask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from services.common.errors import Unavailable
from services.scheduler.dispatch.durable_sweeper import DurableSweeper
from services.scheduler.store.payloads import PayloadStore
from services.scheduler.store.training import TrainingStore

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
REPAIR_SECONDS = 30.0
RESULTS_PER_CALL = 200
PURGES_PER_SWEEP = 20
KEEP_ROWS_MS = 24 * 3600 * 1000
"""How long a closed model and its idempotency rows outlive their session."""


class Sweeper:
    def __init__(
        self,
        store: TrainingStore,
        payloads: PayloadStore,
        durables: DurableSweeper,
        *,
        gap_timeout_ms: int,
        period_seconds: float = PERIOD_SECONDS,
        repair_seconds: float = REPAIR_SECONDS,
        keep_rows_ms: int = KEEP_ROWS_MS,
    ) -> None:
        self._store = store
        self._payloads = payloads
        self._durables = durables
        self._gap_timeout_ms = gap_timeout_ms
        self._period = period_seconds
        self._repair_every = repair_seconds
        self._keep_rows_ms = keep_rows_ms

    async def run(self, pool: str, term: int) -> None:
        """Raises StaleFence, Unavailable."""
        loop = asyncio.get_running_loop()
        repair_at = loop.time() + self._repair_every
        while True:
            await self._sweep(pool, term)
            if loop.time() >= repair_at:
                repair_at = loop.time() + self._repair_every
                await self._repair(pool, term)
            await asyncio.sleep(self._period)

    async def _sweep(self, pool: str, term: int) -> None:
        if closed := await self._store.expire_gaps(pool, term, self._gap_timeout_ms):
            log.warning("pool %s: %d models closed, a command of theirs never arrived", pool, closed)
        expired = RESULTS_PER_CALL
        while expired == RESULTS_PER_CALL:
            expired = await self._store.expire_results(pool, RESULTS_PER_CALL)
        await self._delete_files(self._payloads.drop_blobs, pool)
        await self._delete_files(self._durables.drop, pool)
        for _ in range(PURGES_PER_SWEEP):
            if not await self._store.purge(pool, self._keep_rows_ms):
                break

    async def _delete_files(self, delete: Callable[[str], Awaitable[int]], pool: str) -> None:
        """Files may stay a little longer; nothing else needs to wait for the shared store."""
        try:
            await delete(pool)
        except Unavailable as error:
            log.warning("pool %s: files of settled commands stay for now: %s", pool, error)

    async def _repair(self, pool: str, term: int) -> None:
        await self._delete_files(self._payloads.drop_orphans, pool)
        await self._delete_files(self._durables.drop_orphans, pool)
        if tried := await self._store.repair(pool, term):
            log.warning("pool %s: %d quarantined slots are unloaded once more", pool, tried)
