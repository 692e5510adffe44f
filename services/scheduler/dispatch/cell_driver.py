"""Drives the trainer of one cell under one term. Without one for too long, or with a drained one, the cell's
models go to other cells of the pool, if there are any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Unavailable
from services.scheduler.core.seating import Paging
from services.scheduler.core.select import Policy
from services.scheduler.dispatch.artifacts import Publications
from services.scheduler.dispatch.cell import Cell, Parts
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.dispatch.durables import DurablePoints
from services.scheduler.dispatch.execution import Execution, TrainerLost
from services.scheduler.dispatch.placement import serving
from services.scheduler.dispatch.running import Running
from services.scheduler.ports import CellTrainer, SnapshotSink, TrainerDirectory
from services.scheduler.store.cells import Which
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Longest sleep without a wake-up: a missed message costs at most this much."""
RETRY_SECONDS = 0.2
CHECK_SECONDS = 0.5
UNIT_SECONDS = 600.0
DEFAULT_UNIT_TOKENS = 262_144


@dataclass(frozen=True, slots=True)
class Place:
    pool: str
    cell: str
    term: int


@dataclass(frozen=True, slots=True)
class Driving:
    """What all drivers of a process share; `weights` may change while they are in use."""

    parts: Parts
    directory: TrainerDirectory
    sink: SnapshotSink
    fair: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)
    paging: Paging = field(default_factory=Paging)
    unit_seconds: float = UNIT_SECONDS


class CellDriver:
    def __init__(self, place: Place, driving: Driving, running: Running) -> None:
        self._pool, self._cell, self._term = place.pool, place.cell, place.term
        self._driving = driving
        self._running = running
        self._others: tuple[str, ...] = ()
        self._away_since: float | None = None  # monotonic, as this leader has seen it
        self._given_up = False
        self.wake = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled or drained. Raises StaleFence when another term has begun, Unavailable without Redis."""
        while not self._running.stopping:
            self.wake.clear()
            trainer = (await self._look()).any
            try:
                if trainer is not None:
                    await self._drive(trainer)
                else:
                    await self._without_trainer()
                    await wait_at_most(self.wake, IDLE_SECONDS)
            except TrainerLost as lost:
                log.warning("pool %s, cell %s: trainer incarnation %s is gone", self._pool, self._cell, lost)
                await asyncio.sleep(RETRY_SECONDS)
            except Unavailable as error:
                log.warning("pool %s, cell %s: %s", self._pool, self._cell, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> CellTrainer:
        cells = await self._driving.directory.cells(self._pool)
        here = cells.get(self._cell, CellTrainer())
        self._others = serving(cells, but=self._cell)
        if here.any is not None:
            self._away_since, self._given_up = None, False
        elif self._away_since is None:
            self._away_since = time.monotonic()
        return here

    @property
    def _lost(self) -> bool:
        """Whether the trainer has been away for so long that others take its models."""
        limit = self._driving.parts.limits.cell_lost_ms
        if not limit or not self._others or self._away_since is None:
            return False
        return time.monotonic() - self._away_since >= limit / 1000

    # ---- its trainer -----------------------------------------------------------------------

    async def _drive(self, trainer: pb.RegisterTrainerRequest) -> None:
        driving, pool, parts = self._driving, self._pool, self._driving.parts
        client = TrainerClient(trainer.address, unit_seconds=driving.unit_seconds)
        publications = Publications(pool, client, parts.store, driving.sink, parts.catalog, parts.commands)
        durables = DurablePoints(pool, client, parts.store)
        execution = Execution(
            pool,
            self._term,
            trainer.incarnation,
            client,
            parts.payloads,
            self._still_serving,
            self._replaced,
            self._not_run,
        )
        budget = trainer.facts.unit_token_budget or DEFAULT_UNIT_TOKENS
        policy = Policy(budget, driving.fair, driving.weights, driving.paging)
        cell = Cell(
            pool, self._cell, self._term, trainer.incarnation, client, execution, publications, durables, parts, policy
        )
        self._running.started(self)
        try:
            if (await client.describe()).incarnation != trainer.incarnation:
                raise TrainerLost(trainer.incarnation)  # it has restarted and registers in a moment
            await cell.take_over(trainer.facts.slots)
            await self._turns(cell, trainer.incarnation)
        finally:
            self._running.ended(self)
            await cell.close()
            await publications.cancel()
            await durables.cancel()
            await client.close()

    async def _still_serving(self, incarnation: str) -> bool:
        trainer = (await self._watched()).any
        return not self._lost and (trainer is None or trainer.incarnation == incarnation)

    async def _replaced(self, incarnation: str) -> bool:
        await self._watched()
        return self._lost or await self._driving.directory.replaced(self._pool, self._cell, incarnation)

    async def _not_run(self, unit_id: str) -> None:
        await self._driving.parts.store.not_run(self._pool, self._term, unit_id)

    async def _watched(self) -> CellTrainer:
        """While a unit runs: should its trainer be gone, those that have nothing there need not wait with it."""
        here = await self._look()
        if here.any is None and self._others and not self._lost:
            await self._move("creates")
        return here

    async def _turns(self, cell: Cell, incarnation: str) -> None:
        """Unit after unit until another incarnation serves, or this one counts as lost."""
        loop = asyncio.get_running_loop()
        check_at, here, woken = loop.time(), CellTrainer(), False
        while not self._running.stopping:
            self.wake.clear()
            if loop.time() >= check_at or here.serving is None:
                here, check_at = await self._look(), loop.time() + CHECK_SECONDS
                if self._lost or (here.serving is not None and here.serving.incarnation != incarnation):
                    return
                if cell.crowded and self._others:
                    await self._move("crowded")
            pause = await self._turn(cell, here, woken=woken)
            woken = False
            if pause is None:
                woken = await wait_at_most(self.wake, IDLE_SECONDS)
                if not woken:
                    await cell.rest()
            elif pause:
                await wait_at_most(self.wake, pause)

    async def _turn(self, cell: Cell, here: CellTrainer, *, woken: bool) -> float | None:
        if here.serving is not None:
            return await cell.turn(woken=woken)
        if here.drained is None:
            await self._without_trainer()
        elif self._others:
            await self._move("all")
            return await cell.leave()
        return None

    # ---- its models go elsewhere -----------------------------------------------------------

    async def _without_trainer(self) -> None:
        """New models need not wait for a trainer that is away, and none waits for ever."""
        if self._lost and not self._given_up:
            await self._give_up()
        if self._others:
            await self._move("all" if self._given_up else "creates")

    async def _give_up(self) -> None:
        """Whatever has become of the trainer: it publishes nothing, registers no more, and holds nothing.

        Raises StaleFence, Unavailable also while the store is away: without the fence nothing is taken from it.
        """
        parts = self._driving.parts
        if not await parts.cells.driven(self._pool, self._cell):
            self._given_up = True
            return
        token = await parts.store.takeover_token(self._pool, self._term, "", self._cell)
        await parts.fences.close(self._pool, self._cell, token)
        held = await parts.cells.lose(self._pool, self._term, self._cell)
        self._given_up = True
        text = "pool %s, cell %s: its trainer does not come back; the models of %d slots go to other cells"
        log.error(text, self._pool, self._cell, held)

    async def _move(self, which: Which) -> None:
        cells = self._driving.parts.cells
        if moved := await cells.move(self._pool, self._term, self._cell, which, self._others):
            text = "pool %s, cell %s: %d models go to other cells (%s)"
            log.info(text, self._pool, self._cell, moved, ", ".join(self._others))
