"""Quotas of generations: each counts as its tenant's samples in flight while its replica says that it runs."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from services.common.errors import Busy, Unavailable
from services.scheduler.store.generations import GenerationStore, Held
from services.scheduler.tenancy.limits import encode_limits
from services.scheduler.tenancy.records import Quotas

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0


class GenerationDesk:
    """`quotas` answers those in force for a tenant."""

    def __init__(self, store: GenerationStore, quotas: Callable[[str], Quotas]) -> None:
        self._store = store
        self._quotas = quotas
        self._open: set[Held] = set()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> int:
        """Generations under way here."""
        return len(self._open)

    @asynccontextmanager
    async def admitted(self, held: Held) -> AsyncIterator[None]:
        """The block runs as samples in flight of its tenant. Raises Busy naming the quota, Unavailable."""
        quotas = self._quotas(held.tenant_id)
        limits = encode_limits(quotas, 1, answers=False)
        admission = asyncio.ensure_future(self._store.admit(held, quotas.samples, limits))
        try:
            await asyncio.shield(admission)
            self._open.add(held)
            yield
        finally:
            self._open.discard(held)
            await self._unhurried(self._give_back(held, admission))

    async def _give_back(self, held: Held, admission: asyncio.Future[None]) -> None:
        """Also where the client went while it was being admitted."""
        try:
            await admission
        except Busy:
            return
        except Unavailable as error:
            log.info("a generation may have been admitted: %s", error)
        await self._end(held)

    async def _unhurried(self, work: Coroutine[Any, Any, None]) -> None:
        """It runs to its end whoever stops waiting for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await asyncio.shield(task)

    async def charge(self, held: Held, tokens: int) -> None:
        """Raises Unavailable."""
        await self._store.charge(held, tokens, encode_limits(self._quotas(held.tenant_id), tokens, answers=False))

    async def run(self) -> None:
        """Renews what is open, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self.renew()

    async def renew(self) -> None:
        groups: dict[tuple[str, str], list[Held]] = defaultdict(list)
        for held in self._open:
            groups[held.pool, held.tenant_id].append(held)
        try:
            for (pool, tenant_id), together in groups.items():
                await self._store.renew(pool, tenant_id, together)
        except Unavailable as error:
            log.warning("generations under way are not renewed: %s", error)
            return
        await self._end_those_that_ended(groups)

    async def _end_those_that_ended(self, renewed: dict[tuple[str, str], list[Held]]) -> None:
        """One that ended beside its renewal may have been renewed after it."""
        for together in renewed.values():
            for held in together:
                if held not in self._open:
                    await self._end(held)

    async def _end(self, held: Held) -> None:
        try:
            await self._store.end(held)
        except Unavailable as error:
            log.warning("a generation that ended counts for a while yet: %s", error)
