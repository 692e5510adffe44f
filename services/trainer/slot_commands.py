"""The units that act on slots as a whole: step, init, load, unload, capture.

Each has a phase that only looks (its failure means nothing happened) and a phase that acts;
all ranks agree after each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import AdamParams, AdapterLayout

from services.common.errors import ContractViolation
from services.trainer import checkpoint
from services.trainer.control import Control, unanimous
from services.trainer.engine import Adam, Engine, SlotImage, StepResult
from services.trainer.failures import AgreedFailure, Status, to_failure
from services.trainer.slot_table import SlotTable, engine_layout


@dataclass(frozen=True, slots=True)
class SlotCommands:
    engine: Engine
    table: SlotTable
    control: Control
    store_root: Path
    base_model: str
    max_rank: int

    def optim(self, work: pb.OptimWork) -> list[pb.SlotOutcome]:
        """Steps the slots; one that failed is told apart. Raises AgreedFailure when nothing happened."""
        unanimous(self.control, "optim_step", lambda: self._check_steps(work.steps))
        try:
            results = unanimous(self.control, "optim_step", lambda: self._step(work.steps))
        except AgreedFailure as error:
            return [self._failed(step.slot, error, request_id=step.request_id) for step in work.steps]
        return [self._stepped(step, results[step.slot]) for step in work.steps]

    def init(self, work: pb.InitSlotWork) -> pb.SlotOutcome:
        def look() -> None:
            self.table.vacant(work.slot)
            engine_layout(work.layout, self.max_rank)

        unanimous(self.control, "init", look)
        layout = engine_layout(work.layout, self.max_rank)
        return self._assign(
            work.slot,
            "init",
            lambda: self.engine.init_slot(work.slot, layout, work.seed),
            lambda: self._filled(work.slot, work.layout, 0),
        )

    def load(self, work: pb.LoadSlotWork) -> pb.SlotOutcome:
        """Reads and validates everything before the first assignment. Raises AgreedFailure up to there."""
        image = unanimous(self.control, "load", lambda: self._read(work))
        return self._assign(
            work.slot,
            "load",
            lambda: self.engine.restore(work.slot, image),
            lambda: self._loaded(work, image.step),
        )

    def unload(self, work: pb.UnloadSlotWork) -> pb.SlotOutcome:
        unanimous(self.control, "unload", lambda: self.table.entry(work.slot))
        self.table.touch(work.slot)
        try:
            unanimous(self.control, "unload", lambda: self.engine.clear_slot(work.slot))
        except AgreedFailure as error:
            return self._failed(work.slot, error)
        self.table.vacate(work.slot)
        return self._outcome(work.slot)

    def capture(
        self, slot: int, load_number: int, *, moments: bool, admit: Callable[[], None]
    ) -> tuple[pb.SlotOutcome, SlotImage]:
        """A copy of the slot once `admit` (a look at the public name) passed on every rank."""

        def look() -> None:
            self.table.held(slot, load_number)
            admit()

        unanimous(self.control, "save", look)
        image = unanimous(self.control, "save", lambda: self.engine.capture(slot, moments=moments))
        return self._outcome(slot), image

    def _check_steps(self, steps: Sequence[pb.SlotStep]) -> None:
        slots = [step.slot for step in steps]
        if slots != sorted(set(slots)):
            raise ContractViolation("steps are not sorted by slot, or name one twice")
        for step in steps:
            self.table.held(step.slot, step.load_number)

    def _step(self, steps: Sequence[pb.SlotStep]) -> dict[int, StepResult]:
        wanted = [(step.slot, _adam(step.adam)) for step in steps if not step.skip]
        results = dict(self.engine.optim_steps(wanted)) if wanted else {}
        if set(results) != {slot for slot, _ in wanted}:
            raise ContractViolation(f"the engine stepped {sorted(results)}")
        for step in steps:
            if step.skip:
                self.engine.discard_window(step.slot)
                results[step.slot] = StepResult({"skipped_nonfinite": 1.0})
        return results

    def _stepped(self, step: pb.SlotStep, result: StepResult) -> pb.SlotOutcome:
        skipped = bool(result.metrics.get("skipped_nonfinite"))
        self.table.stepped(step.slot, advanced=not skipped and not result.failure)
        outcome = self._outcome(step.slot, request_id=step.request_id, metrics=dict(result.metrics))
        if result.failure:
            outcome.failure.CopyFrom(to_failure(Status(ok=False, message=result.failure)))
        return outcome

    def _read(self, work: pb.LoadSlotWork) -> SlotImage:
        if work.into_loaded:
            entry = self.table.held(work.slot, work.load_number)
            if entry.layout != work.layout:
                raise ContractViolation(f"slot {work.slot} has another layout than the unit says")
        else:
            self.table.vacant(work.slot)
        layout = engine_layout(work.layout, self.max_rank)
        wanted = checkpoint.Wanted(self.base_model, layout, self.engine.expected_shapes(layout))
        return checkpoint.read(self.store_root, work.directory, wanted, optimizer=work.optimizer)

    def _assign(
        self, slot: int, stage: str, act: Callable[[], None], settle: Callable[[], pb.SlotOutcome]
    ) -> pb.SlotOutcome:
        self.table.touch(slot)
        try:
            unanimous(self.control, stage, act)
        except AgreedFailure as error:
            return self._failed(slot, error, assignment_began=True)
        return settle()

    def _filled(self, slot: int, layout: AdapterLayout, step: int) -> pb.SlotOutcome:
        self.table.fill(slot, layout, step)
        return self._outcome(slot)

    def _loaded(self, work: pb.LoadSlotWork, step: int) -> pb.SlotOutcome:
        if not work.into_loaded:
            return self._filled(work.slot, work.layout, step)
        self.table.refill(work.slot, step)
        return self._outcome(work.slot)

    def _outcome(self, slot: int, *, request_id: str = "", metrics: dict[str, float] | None = None) -> pb.SlotOutcome:
        number = self.table.entry(slot).load_number
        return pb.SlotOutcome(slot=slot, load_number=number, request_id=request_id, metrics=metrics)

    def _failed(
        self, slot: int, error: AgreedFailure, *, request_id: str = "", assignment_began: bool = False
    ) -> pb.SlotOutcome:
        outcome = self._outcome(slot, request_id=request_id)
        outcome.failure.CopyFrom(error.failure())
        outcome.assignment_began = assignment_began
        return outcome


def _adam(params: AdamParams) -> Adam:
    return Adam(
        params.learning_rate, params.beta1, params.beta2, params.eps, params.weight_decay, params.grad_clip_norm
    )
