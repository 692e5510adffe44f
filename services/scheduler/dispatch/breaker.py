"""The circuit breaker between a leader and its trainer: counts, opens, asks for a restart, closes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from services.common.errors import TinkermeshError
from services.scheduler.core.breaker import TRIPS, Breaker
from services.scheduler.dispatch.client import Outcome, TrainerClient
from services.scheduler.dispatch.settlement import SERVER
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.training import Settlement, TrainingStore

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Until an open one asks again: the first request may have been lost."""
_FAILED = ("fail", "seat_failed")


class CircuitBreaker:
    """Of one incarnation. While `open` it is given no work; its successor is, and closes it by a success."""

    def __init__(
        self, pool: str, cell: str, term: int, incarnation: str, client: TrainerClient, store: TrainingStore
    ) -> None:
        self._pool, self._cell, self._term, self._incarnation = pool, cell, term, incarnation
        self._client, self._store = client, store
        self._breaker = Breaker()
        self._noted = False  # in Redis, by whichever incarnation
        self._reason = ""
        self._asked = 0.0  # monotonic
        self.open = False

    async def resume(self) -> None:
        """What a former leader noted. Raises Unavailable."""
        broken, reason = await self._store.broken(self._pool, self._cell)
        self._noted, self.open = bool(broken), broken == self._incarnation
        if self.open:
            self._reason = reason
            await self._ask_for_restart()

    async def wait(self) -> None:
        """Nothing is issued while it is open; its trainer is asked again now and then."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            await self._ask_for_restart()

    async def saw(self, prepared: Prepared, outcome: Outcome, entries: Sequence[Settlement]) -> None:
        """A unit has settled, live or replayed; only those that compute say something. Raises StaleFence,
        Unavailable.
        """
        if prepared.unit.WhichOneof("work") not in ("pass", "optim"):
            return
        failed = bool(outcome.problem) or (
            outcome.header.HasField("failure") and outcome.header.failure.category == SERVER
        )
        models = {item.m for item in prepared.items}
        lone = len(models) == 1 and all(entry.action in _FAILED for entry in entries)
        if self._breaker.saw(models, failed=failed, lone=lone):
            await self._trip(outcome.problem or outcome.header.failure.message)
        elif not failed and self._noted:
            log.warning("pool %s: a unit went well again; the circuit breaker is closed", self._pool)
            await self._store.close_breaker(self._pool, self._term, self._cell)
            self._noted = False

    async def _trip(self, cause: str) -> None:
        reason = f"{TRIPS} units in a row failed, each of one request: {cause}"
        log.error("pool %s: circuit breaker: %s; work waits until the trainer has restarted", self._pool, reason)
        self.open = self._noted = True
        self._reason = reason
        await self._store.open_breaker(self._pool, self._term, self._incarnation, reason, self._cell)
        await self._ask_for_restart()

    async def _ask_for_restart(self) -> None:
        self._asked = time.monotonic()
        try:
            await self._client.retire(self._term, self._incarnation, self._reason)
        except TinkermeshError as error:
            log.error("pool %s: the trainer could not be asked to restart: %s", self._pool, error)
