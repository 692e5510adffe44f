"""Drives the trainer of a pool while this replica holds the pool's lease: a ports.LeaderTask."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Unavailable
from services.scheduler.core.seating import Paging
from services.scheduler.core.select import Policy
from services.scheduler.dispatch.artifacts import Publications
from services.scheduler.dispatch.cell import Cell, Parts
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.dispatch.durables import DurablePoints
from services.scheduler.dispatch.execution import Execution, TrainerLost
from services.scheduler.ports import SnapshotSink, TrainerDirectory

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Longest sleep without a wake-up: a missed message costs at most this much."""
RETRY_SECONDS = 0.2
CHECK_SECONDS = 0.5
UNIT_SECONDS = 600.0
DEFAULT_UNIT_TOKENS = 262_144


class Driver:
    def __init__(
        self,
        parts: Parts,
        directory: TrainerDirectory,
        sink: SnapshotSink,
        *,
        fair: bool = True,
        weights: Mapping[str, float] | None = None,
        paging: Paging | None = None,
        unit_seconds: float = UNIT_SECONDS,
    ) -> None:
        self._parts = parts
        self._directory = directory
        self._sink = sink
        self._fair = fair
        self._weights: Mapping[str, float] = {} if weights is None else weights
        self._paging = Paging() if paging is None else paging
        self._unit_seconds = unit_seconds
        self._wakes: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._stopping = False
        self._busy: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def wake(self, pool: str) -> None:
        self._wakes[pool].set()

    def wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()

    async def drain(self, seconds: float) -> None:
        """No further unit starts; waits for the running ones, at most `seconds`."""
        self._stopping = True
        self.wake_all()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("units still run after %s s; the next leader settles them", seconds)

    async def run(self, pool: str, term: int) -> None:
        """Until cancelled or drained. Raises StaleFence when another term has begun, Unavailable without Redis."""
        while not self._stopping:
            trainer = await self._directory.trainer(pool)
            if trainer is None:
                self._wakes[pool].clear()
                await self._woken(pool, IDLE_SECONDS)
                continue
            try:
                await self._drive(pool, term, trainer)
            except TrainerLost:
                log.warning("pool %s: trainer incarnation %s is gone", pool, trainer.incarnation)
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable as error:
                log.warning("pool %s: %s", pool, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _drive(self, pool: str, term: int, trainer: pb.RegisterTrainerRequest) -> None:
        client = TrainerClient(trainer.address, unit_seconds=self._unit_seconds)
        parts = self._parts
        publications = Publications(pool, client, parts.store, self._sink, parts.catalog, parts.commands)
        policy = Policy(trainer.facts.unit_token_budget or DEFAULT_UNIT_TOKENS, self._fair, self._weights, self._paging)

        async def still_serving(incarnation: str) -> bool:
            now = await self._directory.trainer(pool)
            return now is None or now.incarnation == incarnation

        async def replaced(incarnation: str) -> bool:
            return await self._directory.replaced(pool, incarnation)

        async def not_run(unit_id: str) -> None:
            await parts.store.not_run(pool, term, unit_id)

        payloads = parts.payloads
        execution = Execution(pool, term, trainer.incarnation, client, payloads, still_serving, replaced, not_run)
        durables = DurablePoints(pool, client, parts.store)
        cell = Cell(pool, term, trainer.incarnation, client, execution, publications, durables, parts, policy)
        self._started(pool)
        try:
            if (await client.describe()).incarnation != trainer.incarnation:
                raise TrainerLost(trainer.incarnation)  # it has restarted and registers in a moment
            await cell.take_over(trainer.facts.slots)
            await self._turns(pool, cell, trainer.incarnation)
        finally:
            self._ended(pool)
            await cell.close()
            await publications.cancel()
            await durables.cancel()
            await client.close()

    async def _turns(self, pool: str, cell: Cell, incarnation: str) -> None:
        """Unit after unit until another incarnation serves; none while the trainer is drained or away."""
        loop = asyncio.get_running_loop()
        check_at, serving, woken = loop.time(), False, False
        while not self._stopping:
            if loop.time() >= check_at or not serving:
                trainer = await self._directory.trainer(pool)
                if trainer is not None and trainer.incarnation != incarnation:
                    return
                check_at, serving = loop.time() + CHECK_SECONDS, trainer is not None
            self._wakes[pool].clear()
            pause = await cell.turn(woken=woken) if serving else None
            woken = False
            if pause is None:
                woken = await self._woken(pool, IDLE_SECONDS)
                if not woken:
                    await cell.rest()
            elif pause:
                await self._woken(pool, pause)

    async def _woken(self, pool: str, seconds: float) -> bool:
        """False: nobody called for `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._wakes[pool].wait()
        except TimeoutError:
            return False

    def _started(self, pool: str) -> None:
        self._busy.add(pool)
        self._idle.clear()

    def _ended(self, pool: str) -> None:
        self._busy.discard(pool)
        if not self._busy:
            self._idle.set()
