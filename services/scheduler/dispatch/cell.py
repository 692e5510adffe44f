"""One trainer incarnation driven under one term: choose, issue, execute, settle, again.

A unit found running in Redis is finished first: attached to when the trainer knows it, sent
again under the same id when it does not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs
from services.common.clock import now_ms
from services.common.errors import (
    ContractViolation,
    Gone,
    ServerError,
    StaleFence,
    Unavailable,
    UnknownId,
    UserError,
)
from services.scheduler.core.companions import Companions
from services.scheduler.core.fairness import charged
from services.scheduler.core.plans import OptimPlan, PassPlan, Plan, UnloadPlan
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import Clock
from services.scheduler.dispatch import reports, traces
from services.scheduler.dispatch.acknowledger import Acknowledger
from services.scheduler.dispatch.artifacts import Publications
from services.scheduler.dispatch.client import Outcome, TrainerClient
from services.scheduler.dispatch.payload import gather, size
from services.scheduler.dispatch.settlement import artifact_name, settlements
from services.scheduler.dispatch.slot_units import SlotUnits
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.dispatch.units import Prepared, new_unit, optim_unit, pass_unit, unload_unit
from services.scheduler.ports import CatalogWriter
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.payloads import PayloadStore
from services.scheduler.store.ready import ReadyReader
from services.scheduler.store.training import RunningUnit, TrainingStore

log = logging.getLogger(__name__)

LIFE_SIGN_SECONDS = 1.0
"""How often it is asked, during a unit, whether its trainer still counts as alive."""
RETRY_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


class TrainerLost(Exception):
    """Another incarnation serves the pool now."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cell works with; equal for all pools of a process."""

    store: TrainingStore
    ready: ReadyReader
    commands: CommandCache
    payloads: PayloadStore
    slot_units: SlotUnits
    catalog: CatalogWriter


class Cell:
    def __init__(
        self,
        pool: str,
        term: int,
        incarnation: str,
        client: TrainerClient,
        publications: Publications,
        parts: Parts,
        policy: Policy,
        still_serving: Callable[[str], Awaitable[bool]],
        replaced: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._pool = pool
        self._term = term
        self._incarnation = incarnation
        self._client = client
        self._publications = publications
        self._parts = parts
        self._policy = policy
        self._still_serving = still_serving
        self._replaced = replaced
        self._clock = Clock()
        self._companions = Companions()
        self._settled = Acknowledger(client, term, incarnation)

    async def close(self) -> None:
        await self._settled.close()

    async def take_over(self, slots: int) -> None:
        """Fences out older terms, adopts the slots and finishes what a former leader began.

        Raises StaleFence, Unavailable, TrainerLost.
        """
        token = await self._parts.store.takeover_token(self._pool, self._term, self._incarnation)
        known = await self._client.takeover(self._term, self._incarnation, token)
        lost = await self._parts.store.adopt(self._pool, self._term, self._incarnation, slots)
        if lost:
            log.warning("pool %s: a new trainer incarnation; %d held slots are lost", self._pool, lost)
        for running in await self._parts.ready.running_units(self._pool):
            await self._resume(running)
        captured = await self._parts.ready.capturing(self._pool)
        for save in captured:
            self._publications.watch(self._ref(save.unit_id), save.key, save.name)
        self._settled.add(set(known.finished_units) - {save.unit_id for save in captured})

    async def _resume(self, running: RunningUnit) -> None:
        unit = pb.Unit.FromString(running.work)
        unit.term = self._term
        prepared = Prepared(unit, tuple(running.items))
        stored = await self._parts.commands.get(self._pool, prepared.keys)
        with logs.bind(unit_id=unit.unit_id), traces.unit_span(prepared, stored):
            await self._finish(prepared, stored, await self._recovered(prepared, stored))

    async def turn(self) -> float | None:
        """Runs one unit, or settles one command that needs none.

        Answers for how long to wait for a wake-up before the next turn: 0 after work, None when
        nothing is ready.
        """
        view = await self._parts.ready.view(self._pool, self._policy.budget)
        plan = select(view, self._policy)
        if plan is None:
            self._clock = view.clock
            return None
        if pause := self._companions.wait_seconds(plan, view, self._policy.budget, time.monotonic()):
            return pause
        stored = await self._parts.commands.get(self._pool, _keys(plan))
        prepared = await self._prepare(plan, stored)
        if prepared is not None:
            await self._run(prepared, stored, charged(view.clock, plan, self._policy.weights))
        return 0.0

    async def rest(self) -> None:
        """Nothing was ready for a while: nobody owes anybody a turn."""
        if self._clock != Clock():
            await self._parts.store.reset_clock(self._pool, self._term)
            self._clock = Clock()

    async def _prepare(self, plan: Plan, stored: dict[str, StoredCommand]) -> Prepared | None:
        unit = new_unit(self._term, self._incarnation)
        if isinstance(plan, PassPlan):
            return pass_unit(unit, plan, stored)
        if isinstance(plan, OptimPlan):
            return optim_unit(unit, plan, stored)
        if isinstance(plan, UnloadPlan):
            return unload_unit(unit, plan.slot, await self._parts.ready.holder(self._pool, plan.slot))
        key = plan.step.command.key
        try:
            return await self._parts.slot_units.build(self._pool, unit, plan, stored[key])
        except UserError as error:
            started = now_ms()
            await self._parts.store.refuse(self._pool, self._term, key, error.message)
            reports.report(stored[key], "fail", error.message, started)
            return None

    async def _run(self, prepared: Prepared, stored: dict[str, StoredCommand], clock: Clock) -> None:
        unit = prepared.unit
        if unit.HasField("pass"):
            unit.payload_bytes = size(getattr(unit, "pass"))
        issue = self._parts.store.issue(
            self._pool, self._term, unit.unit_id, self._incarnation, unit.SerializeToString(), prepared.items, clock
        )
        issued, payload = await asyncio.gather(issue, self._payload(prepared, stored))
        if not issued:
            return
        traces.record_queued(stored.values())
        with logs.bind(unit_id=unit.unit_id), traces.unit_span(prepared, stored):
            outcome = payload if isinstance(payload, Outcome) else await self._executed(prepared, stored, payload)
            await self._finish(prepared, stored, outcome)

    async def _payload(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> bytes | Outcome:
        """The unit's payload, or its outcome when a part of it is lost: then nothing can run."""
        if not prepared.unit.HasField("pass"):
            return b""
        try:
            commands = [stored[key] for key in prepared.keys]
            return await gather(self._pool, getattr(prepared.unit, "pass"), commands, self._parts.payloads)
        except (KeyError, ContractViolation) as error:
            return _refused(prepared, f"payload is lost: {error}")

    # ---- execution -------------------------------------------------------------------------

    async def _executed(self, prepared: Prepared, stored: dict[str, StoredCommand], payload: bytes) -> Outcome:
        try:
            return await self._unless_replaced(self._client.execute(prepared.unit, payload))
        except StaleFence:
            raise
        except UserError as error:
            return _refused(prepared, f"trainer refused the unit: {error.message}")
        except ServerError as error:
            log.warning("unit %s: %s; attaching", prepared.unit.unit_id, error)
        return await self._recovered(prepared, stored)

    async def _recovered(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> Outcome:
        """The outcome of a unit that may be anywhere between unsent and recorded."""
        attempt = 0
        while True:
            try:
                return await self._attached(prepared, stored)
            except StaleFence:
                raise
            except UserError as error:
                return _refused(prepared, f"trainer refused the unit: {error.message}")
            except Unavailable as error:
                log.warning("unit %s: trainer is away: %s", prepared.unit.unit_id, error)
            except ServerError as error:
                log.error("unit %s has no outcome: %s", prepared.unit.unit_id, error)
                return Outcome(pb.UnitOutcome(), b"", error.message)
            if not await self._still_serving(self._incarnation):
                raise TrainerLost(self._incarnation)
            await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
            attempt += 1

    async def _attached(self, prepared: Prepared, stored: dict[str, StoredCommand]) -> Outcome:
        try:
            return await self._unless_replaced(self._client.attach(self._ref(prepared.unit.unit_id)))
        except (UnknownId, Gone):
            payload = await self._payload(prepared, stored)
            if isinstance(payload, Outcome):
                return payload
            return await self._unless_replaced(self._client.execute(prepared.unit, payload))

    async def _unless_replaced(self, call: Coroutine[Any, Any, Outcome]) -> Outcome:
        """A trainer that hangs keeps its connections. Raises TrainerLost once it counts as dead and another lives."""
        task = asyncio.create_task(call)
        try:
            while not (await asyncio.wait({task}, timeout=LIFE_SIGN_SECONDS))[0]:
                if await self._replaced(self._incarnation):
                    raise TrainerLost(self._incarnation)
            return task.result()
        finally:
            await end_tasks([task])

    def _ref(self, unit_id: str) -> pb.UnitRef:
        return pb.UnitRef(term=self._term, incarnation=self._incarnation, unit_id=unit_id)

    # ---- settlement ------------------------------------------------------------------------

    async def _finish(self, prepared: Prepared, stored: dict[str, StoredCommand], outcome: Outcome) -> None:
        started = now_ms()
        unit_id = prepared.unit.unit_id
        entries = settlements(prepared, outcome)
        for item, entry in zip(prepared.items, entries, strict=True):
            if item.c and entry.action == "loaded":
                await self._parts.catalog.model_created(self._pool, item.m)
        await self._parts.store.settle(self._pool, self._term, unit_id, entries)
        if prepared.unit.HasField("pass"):
            self._companions.pass_seconds = outcome.header.execute_seconds
        self._companions.settled({item.m for item in prepared.items}, time.monotonic())
        reports.report_unit(prepared, stored, entries, started)
        captured = [item.k for item, entry in zip(prepared.items, entries, strict=True) if entry.action == "captured"]
        for key in captured:
            self._publications.watch(self._ref(unit_id), key, artifact_name(prepared.unit))
        if not captured:
            self._settled.add([unit_id])


def _keys(plan: Plan) -> list[str]:
    if isinstance(plan, PassPlan):
        return [item.command.key for item in plan.items]
    if isinstance(plan, OptimPlan):
        return [step.command.key for step in plan.steps]
    return [] if isinstance(plan, UnloadPlan) else [plan.step.command.key]


def _refused(prepared: Prepared, message: str) -> Outcome:
    """The outcome of a unit that could not run as it stands: nothing of it took effect."""
    failed = types.Failure(category=types.FAILURE_CATEGORY_SERVER, message=message)
    return Outcome(pb.UnitOutcome(unit_id=prepared.unit.unit_id, failure=failed), b"")
