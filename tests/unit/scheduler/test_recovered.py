"""What the units of recovery come to, whatever the trainer answers."""

from __future__ import annotations

import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.dispatch.client import Outcome
from services.scheduler.dispatch.recovered import recovery_settlements
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.training import Settlement, UnitItem

FAILED = types.Failure(category=types.FAILURE_CATEGORY_SERVER, message="no memory")


def optim(*items: UnitItem) -> Prepared:
    unit = pb.Unit(unit_id="u", replay=True)
    for item in items:
        unit.optim.steps.append(pb.SlotStep(slot=item.s, load_number=1, request_id=f"r{item.s}"))
    return Prepared(unit, items)


def step(slot: int, **more: object) -> UnitItem:
    return UnitItem(m=f"m{slot}", s=slot, o="optim_step", k=f"k{slot}", x="replay", **more)  # type: ignore[arg-type]


def answered(*slots: pb.SlotOutcome) -> Outcome:
    return Outcome(pb.UnitOutcome(unit_id="u", slots=slots), b"")


def stepped(slot: int, **metrics: float) -> pb.SlotOutcome:
    return pb.SlotOutcome(slot=slot, load_number=1, request_id=f"r{slot}", metrics=metrics)


def actions(prepared: Prepared, outcome: Outcome) -> list[tuple[str, str]]:
    return [(entry.action, entry.a) for entry in recovery_settlements(prepared, outcome)]


def test_each_step_is_compared_with_what_was_recorded_ADD_05() -> None:
    prepared = optim(step(0, v="2.0"), step(1, v="2.0"), step(2, e=1))
    outcome = answered(stepped(0, grad_norm=2.001), stepped(1, grad_norm=3.0), stepped(2, skipped_nonfinite=1.0))
    assert [action for action, _ in actions(prepared, outcome)] == ["replayed", "diverged", "replayed"]


def test_a_skip_that_is_taken_now_diverges_ADD_05() -> None:
    (settled,) = recovery_settlements(optim(step(0, e=1)), answered(stepped(0, grad_norm=1.0)))
    assert settled == Settlement("diverged", "optim_step: a step that was skipped is taken in the replay")


@pytest.mark.parametrize("problem", ["the outcome's frames are torn", ""])
def test_a_unit_that_fails_or_lies_fails_every_seat_it_held(problem: str) -> None:
    outcome = Outcome(pb.UnitOutcome(unit_id="u", failure=FAILED), b"", problem)
    assert actions(optim(step(0)), outcome) == [("seat_failed", "")]
    assert actions(optim(step(0), step(1)), outcome) == [("seat_failed", "shared")] * 2
    assert actions(optim(step(0)), answered(stepped(5))) == [("seat_failed", "")]
    foreign = Outcome(pb.UnitOutcome(unit_id="another"), b"")
    assert actions(optim(step(0)), foreign) == [("seat_failed", "")]


def durable() -> Prepared:
    unit = pb.Unit(unit_id="u", save=pb.SaveSlotWork(slot=0, load_number=1))
    return Prepared(unit, (UnitItem(m="m", s=0, o="durable", x="durable"),))


def test_a_durable_point_that_fails_costs_its_model_nothing() -> None:
    assert actions(durable(), Outcome(pb.UnitOutcome(unit_id="u", failure=FAILED), b"")) == [("durable_failed", "")]
    assert actions(durable(), answered(pb.SlotOutcome(slot=0, load_number=1))) == [("durable_captured", "")]
    assert actions(durable(), answered(pb.SlotOutcome(slot=0, load_number=7))) == [("durable_failed", "")]


def test_a_save_that_is_refused_now_fails_with_its_category_and_the_replay_goes_on() -> None:
    unit = pb.Unit(unit_id="u", save=pb.SaveSlotWork(slot=0, load_number=1))
    prepared = Prepared(unit, (UnitItem(m="m", s=0, o="save_weights", k="k", x="replay"),))
    taken = types.Failure(category=types.FAILURE_CATEGORY_USER, message="the name is taken")
    refused = recovery_settlements(prepared, Outcome(pb.UnitOutcome(unit_id="u", failure=taken), b""))
    assert refused == [Settlement("resave_failed", "the name is taken", "1")]
    again = recovery_settlements(prepared, answered(pb.SlotOutcome(slot=0, load_number=1)))
    assert again == [Settlement("recaptured")]


def test_a_replayed_pass_is_compared_item_by_item_and_a_datum_may_not_fail_now() -> None:
    unit = pb.Unit(unit_id="u", replay=True)
    work: pb.PassWork = getattr(unit, "pass")
    items = []
    for slot, value in enumerate(("1.5", "1.5", "1.5")):
        work.items.append(pb.PassItem(slot=slot, load_number=1, lengths=[2], widths=[1]))
        items.append(UnitItem(m=f"m{slot}", s=slot, o="forward_backward", k="k", x="replay", v=value))
    outcome = pb.UnitOutcome(unit_id="u")
    made: pb.PassOutcome = getattr(outcome, "pass")
    made.datums.add(loss=1.5)
    made.datums.add(loss=1.6)
    made.datums.add(failure=FAILED)
    settled = recovery_settlements(Prepared(unit, tuple(items)), Outcome(outcome, bytes(16)))
    assert [entry.action for entry in settled] == ["replayed", "diverged", "seat_failed"]
