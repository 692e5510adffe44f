"""Which replica drives a pool: a lease with a growing term, renewed while its tasks run."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from services.common.errors import StaleFence, TinkermeshError, Unavailable
from services.scheduler import metrics
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.ports import LeaderTask
from services.scheduler.store.leases import LeaseStore
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

TTL_MS = 5_000
RENEWALS_PER_TTL = 5
RETRY_SECONDS = 0.3


class LeaseLost(Exception):
    """The lease could not be renewed in time."""


class Leadership:
    def __init__(
        self,
        leases: LeaseStore,
        replica: str,
        tasks: Sequence[LeaderTask],
        *,
        ttl_ms: int = TTL_MS,
    ) -> None:
        self._leases = leases
        self._replica = replica
        self._tasks = tasks
        self._ttl_ms = ttl_ms
        self._renew_seconds = ttl_ms / 1000 / RENEWALS_PER_TTL
        self._wakes: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._retired = False

    def wake(self, pool: str) -> None:
        """The lease of `pool` may be free."""
        self._wakes[pool].set()

    def retire(self) -> None:
        """No lease is asked for any more; those held go when their tasks have ended."""
        self._retired = True
        for event in self._wakes.values():
            event.set()

    async def campaign(self, pool: str) -> None:
        """Leads `pool` whenever the lease can be had; until retired or cancelled, the lease is then released."""
        while not self._retired:
            try:
                held = await self._leases.acquire(pool, self._replica, self._ttl_ms)
            except Unavailable as error:
                log.warning("pool %s: cannot ask for the lease: %s", pool, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if held.term:
                await self._lead(pool, held.term)
            else:
                await self._wait(pool, min(held.wait_ms / 1000 + 0.05, self._renew_seconds))

    async def _wait(self, pool: str, seconds: float) -> None:
        self._wakes[pool].clear()
        await wait_at_most(self._wakes[pool], seconds)

    async def _lead(self, pool: str, term: int) -> None:
        log.info("pool %s: leading term %d", pool, term)
        metrics.leading.labels(pool).set(1)
        running = [asyncio.create_task(task.run(pool, term)) for task in self._tasks]
        running.append(asyncio.create_task(self._renew(pool, term)))
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await asyncio.shield(self._end(pool, term, running))
        if not self._retired:
            await asyncio.sleep(RETRY_SECONDS)

    async def _end(self, pool: str, term: int, running: Sequence[asyncio.Task[None]]) -> None:
        """All tasks end before the lease goes; the first failure is the one logged as the cause."""
        metrics.leading.labels(pool).set(0)
        errors = await end_tasks(running)
        for error in errors:
            _log_end(pool, term, error)
        metrics.terms_ended.labels(pool, _cause(errors)).inc()
        try:
            await self._leases.release(pool, term)
        except TinkermeshError as error:
            log.warning("pool %s: term %d not released: %s", pool, term, error)

    async def _renew(self, pool: str, term: int) -> None:
        loop = asyncio.get_running_loop()
        valid_until = loop.time() + self._ttl_ms / 1000
        while True:
            await asyncio.sleep(self._renew_seconds)
            asked = loop.time()
            try:
                renewed = await self._leases.renew(pool, term, self._ttl_ms)
            except Unavailable as error:
                if loop.time() > valid_until:
                    raise LeaseLost(f"not renewed in time: {error}") from error
                continue
            if not renewed:
                raise StaleFence(f"renewal of term {term}: another replica holds the lease, or it ran out")
            valid_until = asked + self._ttl_ms / 1000


def _cause(errors: Sequence[Exception]) -> str:
    """As metrics tell it, by the first failure."""
    if not errors:
        return "released"
    if isinstance(errors[0], StaleFence):
        return "superseded"
    return "lost" if isinstance(errors[0], (Unavailable, LeaseLost)) else "error"


def _log_end(pool: str, term: int, error: Exception) -> None:
    if isinstance(error, StaleFence):
        log.warning("refused: pool %s: %s", pool, error, extra={"fields": {"refused": "leadership", "term": term}})
    elif isinstance(error, (Unavailable, LeaseLost)):
        log.warning("pool %s: term %d ends: %s", pool, term, error)
    else:
        log.error("pool %s: term %d ends by an unexpected error", pool, term, exc_info=error)
