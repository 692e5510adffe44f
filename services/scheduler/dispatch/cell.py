"""One trainer incarnation, that of a pool's cell, driven under one term: choose, issue, execute, settle, again.

A unit found running in Redis is finished first: attached to when the trainer knows it, sent
again under the same id when it does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from tinkermesh.v1 import trainer_pb2 as pb

from services.common import logs
from services.common.clock import now_ms
from services.common.errors import UserError
from services.scheduler import metrics
from services.scheduler.core.companions import Companions
from services.scheduler.core.fairness import charged
from services.scheduler.core.plans import (
    DurablePlan,
    OptimPlan,
    PagePlan,
    PassPlan,
    Plan,
    ReplayPlan,
    SeatPlan,
    UnloadPlan,
)
from services.scheduler.core.seating import leave, retry_seconds
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import Clock, ReadyView
from services.scheduler.dispatch import reports, traces
from services.scheduler.dispatch.acknowledger import Acknowledger
from services.scheduler.dispatch.artifacts import Publications
from services.scheduler.dispatch.breaker import CircuitBreaker
from services.scheduler.dispatch.client import Outcome, TrainerClient
from services.scheduler.dispatch.durables import DurablePoints
from services.scheduler.dispatch.execution import Execution
from services.scheduler.dispatch.fences import CellFences
from services.scheduler.dispatch.payload import size
from services.scheduler.dispatch.progress import Progress
from services.scheduler.dispatch.recovered import recovery_settlements
from services.scheduler.dispatch.recovery_units import RecoveryUnits, Unrestorable
from services.scheduler.dispatch.settlement import artifact_name, settlements
from services.scheduler.dispatch.slot_units import SlotUnits
from services.scheduler.dispatch.units import Prepared, new_unit, optim_unit, pass_unit, unload_unit
from services.scheduler.ports import CatalogWriter
from services.scheduler.store.cells import CellStore
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.payloads import PayloadStore
from services.scheduler.store.ready import ReadyReader
from services.scheduler.store.training import RecoveryLimits, RunningUnit, Settlement, TrainingStore
from services.scheduler.tenancy.records import DEFAULT_WEIGHT, tenant_class

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cell works with; equal for all pools of a process."""

    store: TrainingStore
    ready: ReadyReader
    commands: CommandCache
    payloads: PayloadStore
    slot_units: SlotUnits
    recovery_units: RecoveryUnits
    catalog: CatalogWriter
    limits: RecoveryLimits
    cells: CellStore
    fences: CellFences


class Cell:
    def __init__(
        self,
        pool: str,
        name: str,
        term: int,
        incarnation: str,
        client: TrainerClient,
        execution: Execution,
        publications: Publications,
        durables: DurablePoints,
        parts: Parts,
        policy: Policy,
    ) -> None:
        self._pool = pool
        self._name = name
        self._term = term
        self._incarnation = incarnation
        self._client = client
        self._execution = execution
        self._publications = publications
        self._durables = durables
        self._parts = parts
        self._policy = policy
        self._clock = Clock()
        self._companions = Companions()
        self._progress = Progress(pool)
        self._recovered = False  # whether the last turn was recovery's
        self._woken = False  # whether this turn ends a sleep
        self.crowded = False
        """Whether a new model waited for a slot at the last turn."""
        self._settled = Acknowledger(client, term, incarnation)
        self._breaker = CircuitBreaker(pool, name, term, incarnation, client, parts.store)

    async def close(self) -> None:
        await self._settled.close()

    async def take_over(self, slots: int) -> None:
        """Fences out older terms, adopts the slots and finishes what a former leader began.

        Raises StaleFence, Unavailable, TrainerLost.
        """
        store, name = self._parts.store, self._name
        token = await store.takeover_token(self._pool, self._term, self._incarnation, name)
        known = await self._client.takeover(self._term, self._incarnation, token)
        lost = await store.adopt(self._pool, self._term, self._incarnation, slots, self._parts.limits, name)
        if lost:
            text = "pool %s, cell %s: a new trainer incarnation; the models of %d slots are restored"
            log.warning(text, self._pool, name, lost)
        await self._breaker.resume()
        for running in await self._parts.ready.running_units(self._pool, name):
            await self._resume(running)
        followed = await self._follow()
        self._settled.add(set(known.finished_units) - followed)

    async def _follow(self) -> set[str]:
        """What is captured and not published is waited for; answers the units."""
        captured = await self._parts.ready.capturing(self._pool, self._name)
        for save in captured:
            self._publications.watch(self._execution.ref(save.unit_id), save.key, save.name)
        durables = await self._parts.ready.durables(self._pool, self._name)
        for model_id, unit_id in durables.items():
            self._durables.watch(self._execution.ref(unit_id), model_id)
        return {save.unit_id for save in captured} | set(durables.values())

    async def _resume(self, running: RunningUnit) -> None:
        unit = pb.Unit.FromString(running.work)
        unit.term = self._term
        prepared = Prepared(unit, tuple(running.items))
        stored = await self._parts.commands.get(self._pool, prepared.keys)
        with logs.bind(unit_id=unit.unit_id), traces.unit_span(prepared, stored):
            await self._finish(prepared, stored, await self._execution.recovered(prepared, stored))

    async def turn(self, *, woken: bool = False) -> float | None:
        """Runs one unit, or settles one command that needs none; `woken`: something came while nothing was ready.

        Answers for how long to wait for a wake-up before the next turn: 0 after work, None when
        nothing is ready.
        """
        self._woken = woken
        if self._breaker.open:
            await self._breaker.wait()
            return None
        view = await self._parts.ready.view(self._pool, self._policy.budget, self._name)
        self._progress.seen(view.recovery)
        self.crowded = view.recovery.create_since_ms is not None and not view.free_slots
        plan = select(view, self._policy, recovered=self._recovered)
        self._recovered = isinstance(plan, (SeatPlan, ReplayPlan))
        if plan is None:
            self._clock = view.clock
            return retry_seconds(view.recovery, self._policy.paging)
        if isinstance(plan, PagePlan):
            return await self._page(plan)
        if pause := self._companions.wait_seconds(plan, view, self._policy.budget, time.monotonic()):
            return pause
        await self._perform(plan, view)
        return 0.0

    async def leave(self) -> float | None:
        """A step towards an empty trainer, answered as `turn`: durable points where they save a replay, then slots."""
        view = await self._parts.ready.view(self._pool, self._policy.budget, self._name, leaving=True)
        self._progress.seen(view.recovery)
        plan = leave(view)
        if plan is None:
            return None
        if isinstance(plan, PagePlan):
            return await self._page(plan, leaving=True)
        await self._perform(plan, view)
        return 0.0

    async def _page(self, plan: PagePlan, *, leaving: bool = False) -> float:
        if await self._parts.store.unseat(self._pool, self._term, plan.model_id, leaving=leaving):
            log.info("model %s gives up its slot%s", plan.model_id, "" if leaving else " to one that waits")
        return 0.0

    async def _perform(self, plan: Plan, view: ReadyView) -> None:
        await self._client.reach()  # what is issued to a dead trainer would be blamed for its death
        stored = await self._parts.commands.get(self._pool, _keys(plan))
        prepared = await self._prepare(plan, stored)
        if prepared is not None:
            if isinstance(plan, SeatPlan):
                self._progress.seating(plan.model_id)
            await self._run(prepared, stored, charged(view.clock, plan, self._policy.weights))

    async def rest(self) -> None:
        """Nothing was ready for a while: nobody owes anybody a turn."""
        if self._clock != Clock():
            await self._parts.store.reset_clock(self._pool, self._term, self._name)
            self._clock = Clock()

    async def _prepare(self, plan: Plan, stored: dict[str, StoredCommand]) -> Prepared | None:
        unit = new_unit(self._term, self._incarnation)
        if isinstance(plan, PassPlan):
            return pass_unit(unit, plan, stored)
        if isinstance(plan, OptimPlan):
            return optim_unit(unit, plan, stored)
        if isinstance(plan, UnloadPlan):
            return unload_unit(unit, plan.slot, await self._holder(plan.slot))
        if isinstance(plan, (SeatPlan, ReplayPlan, DurablePlan)):
            return await self._prepare_recovery(unit, plan, stored)
        if isinstance(plan, PagePlan):
            return None
        key = plan.step.command.key
        try:
            return await self._parts.slot_units.build(self._pool, unit, plan, stored[key])
        except UserError as error:
            started = now_ms()
            await self._parts.store.refuse(self._pool, self._term, key, error.message)
            reports.report(stored[key], "fail", error.message, started)
            metrics.refused_in_turn(self._pool, plan.step.command.op.value)
            return None

    async def _holder(self, slot: int) -> str:
        return await self._parts.ready.holder(self._pool, slot, self._name)

    async def _prepare_recovery(
        self, unit: pb.Unit, plan: SeatPlan | ReplayPlan | DurablePlan, stored: dict[str, StoredCommand]
    ) -> Prepared | None:
        try:
            return await self._parts.recovery_units.build(self._pool, unit, plan, stored)
        except Unrestorable as error:
            log.error("model %s cannot be restored: %s", error.model_id, error.message)
            await self._parts.store.seat_lost(self._pool, self._term, error.model_id, error.message)
            return None

    async def _run(self, prepared: Prepared, stored: dict[str, StoredCommand], clock: Clock) -> None:
        unit = prepared.unit
        if unit.HasField("pass"):
            unit.payload_bytes = size(getattr(unit, "pass"))
        work, items = unit.SerializeToString(), prepared.items
        issue = self._parts.store.issue(
            self._pool, self._term, unit.unit_id, self._incarnation, work, items, clock, self._name
        )
        issued, payload = await asyncio.gather(issue, self._execution.payload(prepared, stored))
        if not issued:
            return
        if not unit.replay:
            traces.record_queued(stored.values())
            self._count_waits(stored)
        with logs.bind(unit_id=unit.unit_id), traces.unit_span(prepared, stored):
            if isinstance(payload, Outcome):
                outcome = payload
            else:
                outcome = await self._execution.executed(prepared, stored, payload)
            await self._finish(prepared, stored, outcome)

    def _count_waits(self, stored: dict[str, StoredCommand]) -> None:
        now = now_ms()
        for command in stored.values():
            name = tenant_class(self._policy.weights.get(command.tenant, DEFAULT_WEIGHT))
            metrics.waited(self._pool, metrics.TRAIN, name, (now - command.admitted_ms) / 1000)
        if self._woken and stored:
            metrics.woken(self._pool, (now - min(command.admitted_ms for command in stored.values())) / 1000)

    # ---- settlement ------------------------------------------------------------------------

    async def _finish(self, prepared: Prepared, stored: dict[str, StoredCommand], outcome: Outcome) -> None:
        started = now_ms()
        unit_id = prepared.unit.unit_id
        recovery = bool(prepared.items[0].x)
        entries = recovery_settlements(prepared, outcome) if recovery else settlements(prepared, outcome)
        for item, entry in zip(prepared.items, entries, strict=True):
            if item.c and entry.action == "loaded":
                await self._parts.catalog.model_created(self._pool, item.m)
        ran_ms = round(1000 * outcome.header.execute_seconds)
        await self._parts.store.settle(self._pool, self._term, unit_id, entries, ran_ms)
        if prepared.unit.HasField("pass"):
            self._companions.pass_seconds = outcome.header.execute_seconds
        if recovery:
            reports.report_recovery(prepared, entries)
        else:
            self._companions.settled({item.m for item in prepared.items}, time.monotonic())
            reports.report_unit(prepared, stored, entries, started)
        tenants = len({command.tenant for command in stored.values()})
        metrics.unit_settled(self._pool, prepared, outcome, entries, tenants, self._policy.budget)
        await self._breaker.saw(prepared, outcome, entries)
        if not self._watch(prepared, entries):
            self._settled.add([unit_id])

    def _watch(self, prepared: Prepared, entries: list[Settlement]) -> bool:
        """Whether something was captured whose publication is to be settled."""
        ref = self._execution.ref(prepared.unit.unit_id)
        watched = False
        for item, entry in zip(prepared.items, entries, strict=True):
            if entry.action in ("captured", "recaptured"):
                self._publications.watch(ref, item.k, artifact_name(prepared.unit))
                watched = True
            elif entry.action == "durable_captured":
                self._durables.watch(ref, item.m)
                watched = True
        return watched


def _keys(plan: Plan) -> list[str]:
    if isinstance(plan, PassPlan):
        return [item.command.key for item in plan.items]
    if isinstance(plan, OptimPlan):
        return [step.command.key for step in plan.steps]
    if isinstance(plan, ReplayPlan):
        return [step.entry.key for step in plan.steps]
    return [] if isinstance(plan, (UnloadPlan, SeatPlan, DurablePlan, PagePlan)) else [plan.step.command.key]
