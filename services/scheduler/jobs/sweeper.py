"""Lets jobs go whose time is over, and removes their files and those of what was never admitted. A LeaderTask."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from pathlib import Path

from services.common.clock import now_ms
from services.common.errors import MissingResource, TinkermeshError, Unavailable
from services.common.ids import JobId, parse_job_id
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.store.jobs import JobStore

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
JOBS_PER_SWEEP = 20
RESIDUE_SECONDS = 3600.0
RESIDUE_PERIOD_SECONDS = 600.0


class JobSweeper:
    def __init__(self, store: JobStore, files: JobFiles, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._store = store
        self._files = files
        self._period = period_seconds

    async def run(self, pool: str, term: int) -> None:
        """Until cancelled; an outage is waited out."""
        residues_at = time.monotonic()
        while True:
            try:
                await self.sweep(pool)
                if time.monotonic() >= residues_at:
                    await self.drop_residues(pool)
                    residues_at = time.monotonic() + RESIDUE_PERIOD_SECONDS
            except Unavailable as error:
                log.warning("pool %s: ended jobs wait to go: %s", pool, error)
            await asyncio.sleep(self._period)

    async def sweep(self, pool: str) -> int:
        """How many have gone."""
        for job in await self._store.due(pool, now_ms(), JOBS_PER_SWEEP):
            await self._doom(job)
        return sum([await self._remove(job) for job in await self._store.doomed(pool, JOBS_PER_SWEEP)])

    async def _doom(self, job: JobId) -> None:
        try:
            await self._store.doom(job)
        except MissingResource:  # its owner was faster
            return

    async def _remove(self, job: JobId) -> bool:
        """Its files first: a row is what remembers that they are to go."""
        row = await self._store.row(job)
        if row is None or row.number("running"):
            return row is None and await self._store.forget(job, "")
        try:
            await in_job_store(self._files.remove, Place(job.pool, row.directory))
        except TinkermeshError as error:
            log.warning("%s waits for its files to go: %s", job, error)
            return False
        log.info("deleted %s", job)
        return await self._store.forget(job, row.tenant_id)

    async def drop_residues(self, pool: str, age_seconds: float = RESIDUE_SECONDS) -> int:
        residues = await self.residues(pool, age_seconds)
        for path in residues:
            await in_job_store(shutil.rmtree, path, ignore_errors=True)
        return len(residues)

    async def residues(self, pool: str, age_seconds: float = RESIDUE_SECONDS) -> list[Path]:
        """What `drop_residues` would delete now. Raises Unavailable."""
        found = await in_job_store(self._files.residues, pool, time.time() - age_seconds)
        return [path for path in found if not await self._named(Place(pool, path.name))]

    async def _named(self, place: Place) -> bool:
        """Whether a job's row names it: its mark was lost, not the job."""
        if not place.job_id:
            return False
        row = await self._store.row(parse_job_id(place.job_id))
        return row is not None and row.directory == place.directory
