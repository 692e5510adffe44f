"""Once a second: the control plane's sign of life, and by one replica at a time the dead sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from services.common import logs
from services.common.errors import TinkermeshError, Unavailable
from services.scheduler.sessions import Sessions
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.sessions import SessionStore

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
SWEEPER_SILENCE_MS = 3_000
OUTAGE_MS = 6_000
GRACE_MS = 60_000
SESSIONS_PER_TICK = 100
RESULTS_PER_TICK = 500


class Sweeper:
    """`front_seen` says whether clients can beat through this replica now (a gateway is connected)."""

    def __init__(
        self,
        replica: str,
        sessions: Sessions,
        store: SessionStore,
        front_seen: Callable[[], bool],
        *,
        lease_ms: int,
        outage_ms: int = OUTAGE_MS,
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._replica = replica
        self._sessions = sessions
        self._store = store
        self._front_seen = front_seen
        self._lease_ms = lease_ms
        self._outage_ms = outage_ms
        self._grace_ms = grace_ms

    async def run(self) -> None:
        """Until cancelled; an outage of Redis is waited out, anything else is a bug and surfaces."""
        try:
            while True:
                await self._tick_safely()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            await self._stop()

    async def _tick_safely(self) -> None:
        try:
            await self.tick()
        except Unavailable as error:
            log.warning("the sweep waits: %s", error)

    async def tick(self) -> None:
        tick = await self._store.tick(
            self._replica,
            front=self._front_seen(),
            silence_ms=SWEEPER_SILENCE_MS,
            outage_ms=self._outage_ms,
            grace_ms=self._grace_ms,
        )
        if tick.credited_ms:
            log.warning("clients could not beat for a while: every lease got %d ms back", tick.credited_ms)
        if tick.sweeps:
            await self._sweep(tick.now_ms)

    async def _sweep(self, now_ms: int) -> None:
        for session_id, last_ms in await self._store.silent_since(now_ms - self._lease_ms, SESSIONS_PER_TICK):
            with logs.bind(session_id=session_id):
                await self._expire(session_id, last_ms)

    async def _expire(self, session_id: str, last_ms: int) -> None:
        try:
            await self._sessions.expire(session_id, last_ms)
        except Unavailable:
            raise
        except TinkermeshError as error:
            log.error("session %s cannot be closed yet: %s", session_id, error)

    async def _stop(self) -> None:
        try:
            await self._store.stop_sweeping(self._replica)
        except Unavailable as error:
            log.info("the sweep's lock runs out by itself: %s", error)


class ResultSweeper:
    """A LeaderTask: results of samples past their retention leave Redis, and recorded sequences past their time."""

    def __init__(self, store: SamplingStore, sequences: SequenceStore, *, keep_ms: int, seconds: float = 30.0) -> None:
        self._store = store
        self._sequences = sequences
        self._keep_ms = keep_ms
        self._seconds = seconds

    async def run(self, pool: str, term: int) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                swept = RESULTS_PER_TICK
                while swept == RESULTS_PER_TICK:
                    swept = await self._store.sweep(pool, RESULTS_PER_TICK, self._keep_ms)
                ended = RESULTS_PER_TICK
                while ended == RESULTS_PER_TICK:
                    ended = await self._sequences.sweep(pool, RESULTS_PER_TICK)
            except Unavailable as error:
                log.warning("pool %s: expired results stay a little longer: %s", pool, error)
