"""Large results leave Redis: a ports.LeaderTask that writes each to a file of the shared store once.

A result settles where it is, whole and at once; the move follows within a second. The file is written before
the row names it, so a reader finds the one or the other.
"""

from __future__ import annotations

import asyncio
import logging

from services.common.errors import ContractViolation, Gone, Unavailable
from services.scheduler.results import Results
from services.scheduler.store.large_results import LargeResults
from services.scheduler.store.payloads import BlobStore, blob_name

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
AT_ONCE = 8


class ResultMover:
    def __init__(
        self, store: LargeResults, results: Results, blobs: BlobStore, period_seconds: float = PERIOD_SECONDS
    ) -> None:
        self._store = store
        self._results = results
        self._blobs = blobs
        self._period = period_seconds

    async def run(self, pool: str, term: int) -> None:
        """Until cancelled; while the shared store is away results stay in Redis."""
        while True:
            try:
                await self.move(pool)
            except Unavailable as error:
                log.warning("pool %s: large results stay in Redis for now: %s", pool, error)
            await asyncio.sleep(self._period)

    async def move(self, pool: str) -> int:
        """Answers how many now lie in files. Raises Unavailable."""
        moved = 0
        for key in await self._store.waiting(pool, AT_ONCE):
            moved += await self._move(pool, key)
            await self._store.done(pool, key)
        return moved

    async def _move(self, pool: str, key: str) -> bool:
        request = await self._store.request(pool, key)
        if request is None:
            return False
        try:
            data = await self._results.stored(request)
        except Gone:
            return False
        except ContractViolation as error:  # who asks for it is told; the others' results are to go on
            log.error("a large result stays where it was: %s", error)
            return False
        name = blob_name(pool, key)
        await self._blobs.put(name, data)
        if await self._store.moved(request, name, len(data)):
            return True
        await self._blobs.delete(name)
        return False
