"""Runs units on the double's slots; every unit takes effect whole or not at all."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.datum_blocks import Datum, block_bytes, decode
from services.common.errors import InvalidInput, TinkermeshError, UserError
from services.common.publication_fence import PublicationFence
from services.common.tinker_path import TinkerPath
from services.trainer import metrics
from tests.doubles import arithmetic, published
from tests.doubles.arithmetic import SlotWeights
from tests.doubles.faults import Faults, Rule
from tests.doubles.journal import Journal
from tests.doubles.unit_book import Recorded

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Slot:
    load_number: int = 0
    held: SlotWeights | None = None


def failure(message: str, *, user: bool = False) -> types.Failure:
    category = types.FAILURE_CATEGORY_USER if user else types.FAILURE_CATEGORY_SERVER
    return types.Failure(category=category, message=message)


@dataclass(slots=True)
class UnitRunner:
    store_root: Path
    slots: list[Slot]
    faults: Faults
    journal: Journal
    fence: PublicationFence | None = None
    superseded: Callable[[str], None] = lambda reason: None
    artifacts: dict[str, asyncio.Task[pb.ArtifactOutcome]] = field(default_factory=dict)
    reply_dropped: set[str] = field(default_factory=set)

    @property
    def publishing(self) -> int:
        return sum(not task.done() for task in list(self.artifacts.values()))

    async def run(self, unit: pb.Unit, payload: bytes) -> Recorded:
        """Spans and log lines are named as the real trainer's."""
        kind = str(unit.WhichOneof("work"))
        metrics.unit_started()
        with logs.bind(unit_id=unit.unit_id), telemetry.span(f"trainer.{kind}", {"unit_id": unit.unit_id}):
            recorded = await self._run(unit, payload, kind)
            log.info("%s: %.3f s", kind, recorded[0].execute_seconds)
            metrics.unit_ended(unit, recorded[0])
            return recorded

    async def _run(self, unit: pb.Unit, payload: bytes, kind: str) -> Recorded:
        due = self.faults.due(kind, _lengths(unit))
        await self._before(due)
        started = time.monotonic()
        outcome, scores = self._outcome(unit, payload, kind, due)
        outcome.unit_id, outcome.payload_bytes = unit.unit_id, len(scores)
        outcome.execute_seconds = time.monotonic() - started
        if any(rule.action == "drop_reply" for rule in due):
            self.reply_dropped.add(unit.unit_id)
        await self._after(due)
        return outcome, scores

    async def _before(self, due: list[Rule]) -> None:
        await self.faults.apply_waits(due, "before")
        die_if(due, "die_before")

    async def _after(self, due: list[Rule]) -> None:
        die_if(due, "die_after")
        await self.faults.apply_waits(due, "after")

    def _outcome(self, unit: pb.Unit, payload: bytes, kind: str, due: list[Rule]) -> Recorded:
        for rule in due:
            if rule.action in ("fail", "fail_user", "fail_transient"):
                injected = failure(f"injected failure of a {kind} unit", user=rule.action == "fail_user")
                injected.transient = rule.action == "fail_transient"
                return pb.UnitOutcome(failure=injected), b""
        try:
            outcome, scores = self._effect(unit, payload, kind, due)
        except TinkermeshError as error:
            return pb.UnitOutcome(failure=failure(error.message, user=isinstance(error, UserError))), b""
        self.journal.executed(unit, kind)
        return outcome, scores

    def _effect(self, unit: pb.Unit, payload: bytes, kind: str, due: list[Rule]) -> Recorded:
        if kind == "pass":
            return self._pass(getattr(unit, "pass"), payload, due)
        if kind == "optim":
            return self._optim(unit.optim, any(rule.action == "skip_step" for rule in due)), b""
        if kind == "init":
            return self._assign(unit.init.slot, arithmetic.fresh(unit.init.layout, unit.init.seed)), b""
        if kind == "load":
            return self._load(unit.load), b""
        if kind == "save":
            return self._capture(unit, unit.save, overwrite=unit.save.overwrite, moments=True), b""
        if kind == "snapshot":
            return self._capture(unit, unit.snapshot, overwrite=False, moments=False), b""
        if kind == "unload":
            self.slots[unit.unload.slot].held = None
            return _slots([self._slot_outcome(unit.unload.slot)]), b""
        raise InvalidInput(f"unit {unit.unit_id} has no work")

    def _held(self, slot: int, load_number: int) -> SlotWeights:
        """Raises InvalidInput when the slot is not at `load_number`."""
        if slot >= len(self.slots):
            raise InvalidInput(f"slot {slot} is not one of {len(self.slots)}")
        found = self.slots[slot]
        if found.held is None or found.load_number != load_number:
            raise InvalidInput(f"slot {slot} is at load {found.load_number}, not {load_number}")
        return found.held

    def _pass(self, work: pb.PassWork, payload: bytes, due: list[Rule]) -> Recorded:
        doomed = {rule.datum for rule in due if rule.action == "fail_datum"}
        changed: dict[int, SlotWeights] = {}
        outcomes: list[pb.DatumOutcome] = []
        scores: list[bytes] = []
        for item, datum in _datums(work, payload):
            slot = changed.setdefault(item.slot, self._held(item.slot, item.load_number).copy())
            if len(outcomes) in doomed:
                outcomes.append(pb.DatumOutcome(failure=failure("injected failure of a datum")))
                continue
            lp = arithmetic.logprobs(slot.weights, datum)
            outcomes.append(pb.DatumOutcome(loss=arithmetic.loss(datum, lp)))
            scores.append(lp.tobytes())
            if work.backward:
                arithmetic.accumulate(slot, datum, work.loss)
        for number, slot in changed.items():
            self.slots[number].held = slot
        outcome = pb.UnitOutcome()
        outcome_pass: pb.PassOutcome = getattr(outcome, "pass")
        outcome_pass.datums.extend(outcomes)
        return outcome, b"".join(scores)

    def _optim(self, work: pb.OptimWork, nonfinite: bool) -> pb.UnitOutcome:
        stepped = [(step, self._held(step.slot, step.load_number)) for step in work.steps]
        outcomes = []
        for step, slot in stepped:
            stepping = arithmetic.skip_step if nonfinite or step.skip else arithmetic.optim_step
            done = self._slot_outcome(step.slot, stepping(slot, step.adam))
            done.request_id = step.request_id
            outcomes.append(done)
        return _slots(outcomes)

    def _assign(self, slot: int, weights: SlotWeights) -> pb.UnitOutcome:
        """Init, or load into an empty slot: a new load number. Into a loaded slot: the same one."""
        if slot >= len(self.slots):
            raise InvalidInput(f"slot {slot} is not one of {len(self.slots)}")
        self.slots[slot].load_number += self.slots[slot].held is None
        self.slots[slot].held = weights
        return _slots([self._slot_outcome(slot)])

    def _load(self, work: pb.LoadSlotWork) -> pb.UnitOutcome:
        """Raises InvalidInput or MissingResource before anything is touched."""
        if work.into_loaded:
            self._held(work.slot, work.load_number)
        state = published.read_state(self.store_root, work.directory)
        try:
            if int(state["rank"]) != work.layout.rank:
                raise InvalidInput(f"rank: checkpoint has {state['rank']}, model has {work.layout.rank}")
            weights = arithmetic.restored(work.layout, state, optimizer=work.optimizer)
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"{work.directory}: {error}") from error
        return self._assign(work.slot, weights)

    def _capture(
        self, unit: pb.Unit, work: pb.SaveSlotWork | pb.SnapshotSlotWork, *, overwrite: bool, moments: bool
    ) -> pb.UnitOutcome:
        state = self._held(work.slot, work.load_number).state(moments=moments)
        if not overwrite and published.taken(self.store_root, work.directory, work.meta):
            raise InvalidInput(f"{_named(work.meta)} exists already; pick another name")
        self.artifacts[unit.unit_id] = asyncio.create_task(self._publish(unit, work, state, overwrite=overwrite))
        outcome = _slots([self._slot_outcome(work.slot)])
        outcome.artifact_pending = True
        return outcome

    async def _publish(
        self,
        unit: pb.Unit,
        work: pb.SaveSlotWork | pb.SnapshotSlotWork,
        state: dict[str, object],
        *,
        overwrite: bool,
    ) -> pb.ArtifactOutcome:
        span = telemetry.span("trainer.publish", {"unit_id": unit.unit_id})
        with metrics.publication(work.meta.kind), span:
            due = self.faults.due("publish")
            await self._before(due)
            if any(rule.action in ("fail", "fail_user") for rule in due):
                return pb.ArtifactOutcome(unit_id=unit.unit_id, failure=failure("injected failure of a publication"))
            try:
                version, size = published.publish(
                    self.store_root,
                    work.directory,
                    work.meta,
                    state,
                    overwrite=overwrite,
                    term=unit.term,
                    stage=self.fence.stage if self.fence is not None else None,
                )
            except TinkermeshError as error:
                self._look_for_successor(work.directory, unit.unit_id)
                told = failure(error.message, user=isinstance(error, UserError))
                return pb.ArtifactOutcome(unit_id=unit.unit_id, failure=told)
            await self._after(due)
            return pb.ArtifactOutcome(unit_id=unit.unit_id, version_directory=version, size_bytes=size)

    def _look_for_successor(self, directory: str, unit_id: str) -> None:
        """Whether a publication failed because another incarnation has taken over: then this one ends."""
        if self.fence is not None and (reason := self.fence.superseded):
            log.warning("refused: publication of %s: %s", directory, reason, extra={"fields": {"unit_id": unit_id}})
            self.superseded(reason)

    def _slot_outcome(self, slot: int, metrics: dict[str, float] | None = None) -> pb.SlotOutcome:
        return pb.SlotOutcome(slot=slot, load_number=self.slots[slot].load_number, metrics=metrics or {})


def _named(meta: pb.ArtifactMeta) -> str:
    return str(TinkerPath(meta.model_id, meta.kind, meta.name))


def _slots(outcomes: list[pb.SlotOutcome]) -> pb.UnitOutcome:
    return pb.UnitOutcome(slots=outcomes)


def _datums(work: pb.PassWork, payload: bytes) -> Iterable[tuple[pb.PassItem, Datum]]:
    start = 0
    view = memoryview(payload)
    for item in work.items:
        size = sum(block_bytes(n, k, len(work.fields)) for n, k in zip(item.lengths, item.widths, strict=True))
        for datum in decode(view[start : start + size], item.lengths, item.widths, work.fields):
            yield item, datum
        start += size
    if start != len(payload):
        raise InvalidInput(f"payload has {len(payload)} bytes, its items say {start}")


def _lengths(unit: pb.Unit) -> set[int]:
    return {length for item in getattr(unit, "pass").items for length in item.lengths}


def die_if(due: list[Rule], action: str) -> None:
    if any(rule.action == action for rule in due):
        os.kill(os.getpid(), signal.SIGKILL)
