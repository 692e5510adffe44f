"""Deletes the files of what is past its time, or was deleted and not finished. Costs what is due."""

from __future__ import annotations

import asyncio
import logging

from services.common.errors import MissingResource, Unavailable
from services.scheduler.artifacts import Artifacts
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import Doomed

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
TENANTS_PER_SWEEP = 20
CHECKPOINTS_PER_TENANT = 50


class CatalogSweeper:
    """Runs on every replica: each step may be repeated, so two at once do no harm."""

    def __init__(self, store: CatalogStore, artifacts: Artifacts, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._store = store
        self._artifacts = artifacts
        self._period = period_seconds

    async def run(self) -> None:
        """Until cancelled; an outage of Redis is waited out, anything else is a bug and surfaces."""
        while True:
            try:
                await self.sweep()
            except Unavailable as error:
                log.warning("expired checkpoints wait: %s", error)
            await asyncio.sleep(self._period)

    async def sweep(self) -> int:
        """Answers how many versions were deleted."""
        return sum([await self._sweep(tenant) for tenant in await self._store.tenants_due(TENANTS_PER_SWEEP)])

    async def _sweep(self, tenant_id: str) -> int:
        doomed, _ = await self._store.due(tenant_id, CHECKPOINTS_PER_TENANT)
        failed = [error for error in await asyncio.gather(*(self._delete(tenant_id, one) for one in doomed)) if error]
        if failed:
            log.warning("%d deleted or expired checkpoints wait for their files to go: %s", len(failed), failed[0])
        if len(doomed) < CHECKPOINTS_PER_TENANT:
            await self._store.rest_until_due(tenant_id)
        return len(doomed) - len(failed)

    async def _delete(self, tenant_id: str, one: Doomed) -> str:
        """Why it could not be, "" when it is gone; it stays doomed and comes again."""
        try:
            await self._artifacts.remove(one.path, one.version)
            await self._store.forget(tenant_id, one)
        except (MissingResource, Unavailable) as error:  # another replica is at it, or the store is away
            return error.message
        log.info("deleted %s (%s)", one.path, one.version)
        return ""
