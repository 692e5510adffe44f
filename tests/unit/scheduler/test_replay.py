"""Which logged units are formed again first, and when a replay counts as the same."""

from __future__ import annotations

import pytest

from services.scheduler.core.plans import ReplayPlan
from services.scheduler.core.replay import LOSS_TOLERANCE, divergence, next_replay
from services.scheduler.core.seats import LogEntry, ReplayQueue


def queue(
    model: str, number: int, *, slot: int = 0, models: int = 1, waits: bool = False, alone: bool = False
) -> ReplayQueue:
    entry = LogEntry(
        position=0, op="forward_backward", key=f"{model}-key", unit=f"unit{number}", number=number, models=models
    )
    return ReplayQueue(model, "tenant", slot, 1, (entry,), waits=waits, alone=alone)


def chosen(*queues: ReplayQueue, more: bool = False) -> list[str] | None:
    plan = next_replay(queues, more_to_seat=more)
    return None if plan is None else [step.queue.model_id for step in plan.steps]


def test_the_oldest_unit_goes_first_so_that_models_interleave_as_they_once_did() -> None:
    assert chosen(queue("a", 5), queue("b", 4, slot=1), queue("c", 6, slot=2)) == ["b"]


def test_a_model_something_waits_for_goes_before_idle_ones() -> None:
    assert chosen(queue("idle", 1), queue("waiting", 9, slot=1, waits=True)) == ["waiting"]


def test_a_shared_unit_is_formed_again_once_all_its_models_have_it_next() -> None:
    a, b = queue("a", 7, slot=3, models=2, waits=True), queue("b", 7, slot=1, models=2)
    assert chosen(a, b) == ["b", "a"]  # slot by slot


def test_a_waiting_model_whose_shared_unit_is_not_complete_lets_the_others_catch_up() -> None:
    waiting, behind = queue("waiting", 7, models=2, waits=True), queue("behind", 3, slot=1)
    assert chosen(waiting, behind) == ["behind"]


def test_an_incomplete_unit_goes_as_it_is_when_nobody_can_complete_it() -> None:
    assert chosen(queue("left", 7, models=2, waits=True)) == ["left"]  # the other one is closed, or covered


def test_first_the_models_that_may_belong_to_it_are_seated() -> None:
    assert chosen(queue("left", 7, models=2, waits=True), more=True) is None


def test_a_model_whose_replay_failed_among_others_goes_alone() -> None:
    alone, other = queue("alone", 7, models=2, alone=True), queue("other", 7, slot=1, models=2)
    assert chosen(alone, other) == ["alone"]
    assert chosen(other) == ["other"]


def test_nothing_to_replay_is_no_plan() -> None:
    assert next_replay([], more_to_seat=False) is None
    assert next_replay([ReplayQueue("a", "t", 0, 1, ())], more_to_seat=False) is None


def test_all_entries_of_one_model_in_one_unit_go_together_in_log_order() -> None:
    entries = tuple(LogEntry(position=n, op="forward_backward", key=f"k{n}", unit="u", number=1) for n in (4, 5, 6))
    plan = next_replay([ReplayQueue("a", "t", 0, 1, entries)], more_to_seat=False)
    assert isinstance(plan, ReplayPlan)
    assert [step.entry.position for step in plan.steps] == [4, 5, 6]


@pytest.mark.parametrize(
    ("recorded", "observed", "same"),
    [
        ("2.0", 2.0, True),
        ("2.0", 2.0 * (1 + 5e-5), True),
        ("2.0", 2.001, False),
        ("0.0", 1e-5, True),
        ("", None, True),
        ("2.0", None, False),
        ("2.0", float("nan"), False),
    ],
)
def test_an_outcome_beyond_the_tolerance_diverges_ADD_05(recorded: str, observed: float | None, same: bool) -> None:
    assert (divergence(recorded, observed, LOSS_TOLERANCE) == "") is same
