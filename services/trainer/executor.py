"""Runs one unit on this rank, in step with the other ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinkermesh.v1 import trainer_pb2 as pb

from services.common import logs
from services.common.errors import ContractViolation
from services.common.store import is_durable
from services.common.telemetry import span
from services.common.tinker_path import DURABLE, EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, WEIGHTS
from services.trainer import metrics, passes
from services.trainer.artifacts import Artifact, ArtifactWriter, Destination
from services.trainer.control import unanimous
from services.trainer.engine import DatumResult
from services.trainer.failures import AgreedFailure, RanksDiverged, Status
from services.trainer.passes import PassLimits, PreparedPass
from services.trainer.slot_commands import SlotCommands

log = logging.getLogger(__name__)


class Executed(NamedTuple):
    outcome: pb.UnitOutcome
    payload: bytes


@dataclass(frozen=True, slots=True)
class Executor:
    """`writer` lives on rank 0 only: the other ranks take part in a capture and write nothing."""

    commands: SlotCommands
    limits: PassLimits
    writer: ArtifactWriter | None

    def run(self, unit: pb.Unit, payload: bytes, traceparent: str = "") -> Executed:
        """The unit's outcome, equal on all ranks. Raises RanksDiverged when only a new life helps."""
        kind = unit.WhichOneof("work") or ""
        started = time.perf_counter()
        metrics.unit_started()
        with logs.bind(unit_id=unit.unit_id), span(f"trainer.{kind}", {"unit_id": unit.unit_id}, parent=traceparent):
            try:
                executed = self._dispatch(kind, unit, payload, traceparent)
            except AgreedFailure as error:
                executed = Executed(pb.UnitOutcome(failure=error.failure()), b"")
            executed.outcome.unit_id = unit.unit_id
            executed.outcome.payload_bytes = len(executed.payload)
            executed.outcome.execute_seconds = time.perf_counter() - started
            _log(unit, executed.outcome)
        metrics.unit_ended(unit, executed.outcome)
        return executed

    def _dispatch(self, kind: str, unit: pb.Unit, payload: bytes, traceparent: str) -> Executed:
        if kind == "pass":
            return self._pass(getattr(unit, "pass"), payload, replay=unit.replay)
        handlers: dict[str, Callable[[], pb.UnitOutcome]] = {
            "optim": lambda: pb.UnitOutcome(slots=self.commands.optim(unit.optim)),
            "init": lambda: pb.UnitOutcome(slots=[self.commands.init(unit.init)]),
            "load": lambda: pb.UnitOutcome(slots=[self.commands.load(unit.load)]),
            "unload": lambda: pb.UnitOutcome(slots=[self.commands.unload(unit.unload)]),
            "save": lambda: self._save(unit, unit.save, traceparent),
            "snapshot": lambda: self._snapshot(unit, unit.snapshot, traceparent),
        }
        handler = handlers.get(kind)
        if handler is None:
            raise AgreedFailure(Status(ok=False, message="the unit has no work this trainer knows"), everywhere=True)
        return Executed(handler(), b"")

    def _pass(self, work: pb.PassWork, payload: bytes, *, replay: bool) -> Executed:
        commands = self.commands
        # What once fitted has taken effect: another life's estimate must not refuse it, or its model is lost.
        limits = replace(self.limits, memory=None) if replay else self.limits
        prepared = unanimous(commands.control, "pass", lambda: passes.prepare(work, payload, commands.table, limits))
        outcome, scores = passes.assemble(prepared, self._run_pass(prepared))
        for slot in prepared.slots:
            commands.table.set_window(slot, commands.engine.window_open(slot))
        whole = pb.UnitOutcome()
        getattr(whole, "pass").CopyFrom(outcome)
        return Executed(whole, scores)

    def _run_pass(self, prepared: PreparedPass) -> list[DatumResult]:
        if not prepared.datums:
            return []
        engine = self.commands.engine

        def run() -> list[DatumResult]:
            return engine.run_pass(prepared.datums, prepared.loss, backward=prepared.backward)

        try:
            return unanimous(self.commands.control, "pass", run)
        except AgreedFailure as error:
            if not error.everywhere and prepared.backward:
                raise RanksDiverged(f"a pass failed on some ranks only: {error}") from error
            raise

    def _save(self, unit: pb.Unit, work: pb.SaveSlotWork, traceparent: str) -> pb.UnitOutcome:
        destination = Destination(work.meta, work.directory, work.overwrite, unit.term)
        return self._capture(unit, work.slot, work.load_number, destination, traceparent, moments=True)

    def _snapshot(self, unit: pb.Unit, work: pb.SnapshotSlotWork, traceparent: str) -> pb.UnitOutcome:
        # A snapshot's name is never used twice: samplers pin what they loaded under it.
        destination = Destination(work.meta, work.directory, False, unit.term)
        return self._capture(unit, work.slot, work.load_number, destination, traceparent, moments=False)

    def _capture(
        self,
        unit: pb.Unit,
        slot: int,
        load_number: int,
        destination: Destination,
        traceparent: str,
        *,
        moments: bool,
    ) -> pb.UnitOutcome:
        def admit() -> None:
            _check_meta(unit, destination, self.commands)
            if self.writer is not None:
                self.writer.admit(destination)

        with span("trainer.capture", {"slot": slot}):
            outcome, image = self.commands.capture(slot, load_number, moments=moments, admit=admit)
        if self.writer is not None:
            destination.meta.layout.CopyFrom(self.commands.table.entry(slot).layout)
            self.writer.submit(Artifact(unit.unit_id, image, destination, traceparent))
        return pb.UnitOutcome(slots=[outcome], artifact_pending=True)


def _log(unit: pb.Unit, outcome: pb.UnitOutcome) -> None:
    """One line per unit, with the requests it packs, in its order, and their slots, as far as the unit names them."""
    kind = unit.WhichOneof("work") or ""
    named = {"pass": getattr(unit, "pass").items, "optim": unit.optim.steps}.get(kind, ())
    requests = {item.request_id: item.slot for item in named}
    failed = f", failed: {outcome.failure.message}" if outcome.HasField("failure") else ""
    with logs.bind(request_id=" ".join(requests)):
        fields = {"slots": list(requests.values())} if requests else {}
        log.info("%s: %.3f s%s", kind, outcome.execute_seconds, failed, extra={"fields": fields})


def _check_meta(unit: pb.Unit, destination: Destination, commands: SlotCommands) -> None:
    work, meta = unit.WhichOneof("work"), destination.meta
    wanted = (WEIGHTS, DURABLE) if work == "save" else (SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS)
    if meta.kind not in wanted:
        raise ContractViolation(f"meta.kind of a {work} must be {' or '.join(wanted)}, not {meta.kind!r}")
    if (meta.kind == DURABLE) != is_durable(destination.directory):
        raise ContractViolation(f"kind {meta.kind!r} does not belong into {destination.directory!r}")
    if meta.base_model != commands.base_model:
        raise ContractViolation(f"meta.base_model is {meta.base_model!r}, this trainer has {commands.base_model!r}")
