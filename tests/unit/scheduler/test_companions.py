"""A pass waits for the models that settled together with its own, briefly and only for them."""

from __future__ import annotations

import pytest

from services.scheduler.core.companions import LONGEST_SECONDS, Companions
from services.scheduler.core.plans import UnloadPlan
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import ModelQueue, Op, QueuedCommand, ReadyView

BUDGET = 4096
SLOW_PASS = 0.4  # 5 % of it are 20 ms


def _view(*models: str, tokens: int = 16) -> ReadyView:
    """Each of `models` has one forward_backward of one datum."""
    return ReadyView(tuple(_queue(n, name, tokens) for n, name in enumerate(models)))


def _queue(slot: int, name: str, tokens: int) -> ModelQueue:
    command = QueuedCommand(f"key-{name}", Op.FORWARD_BACKWARD, 1, slot, "p", (tokens,))
    return ModelQueue(name, f"tenant-{name}", slot, 1, (command,))


def _wait(companions: Companions, view: ReadyView, now: float) -> float:
    plan = select(view, Policy(BUDGET))
    assert plan is not None
    return companions.wait_seconds(plan, view, BUDGET, now)


@pytest.fixture
def companions() -> Companions:
    found = Companions(pass_seconds=SLOW_PASS)
    found.settled(["a", "b", "c"], now=100.0)
    return found


def test_the_first_to_return_waits_for_the_others(companions):
    assert _wait(companions, _view("a"), 100.0) == pytest.approx(0.02)
    assert _wait(companions, _view("a", "b"), 100.01) == pytest.approx(0.01)


def test_nobody_waits_once_all_have_returned(companions):
    assert _wait(companions, _view("a", "b", "c"), 100.0) == 0.0


def test_nobody_waits_beyond_a_share_of_the_last_pass(companions):
    assert _wait(companions, _view("a"), 100.02) == 0.0


def test_the_wait_is_bounded_however_long_a_pass_takes():
    companions = Companions(pass_seconds=60.0)
    companions.settled(["a", "b"], now=0.0)
    assert _wait(companions, _view("a"), 0.0) == LONGEST_SECONDS


def test_a_model_that_was_alone_never_waits():
    companions = Companions(pass_seconds=SLOW_PASS)
    companions.settled(["a"], now=0.0)
    assert _wait(companions, _view("a"), 0.0) == 0.0


def test_a_fast_trainer_never_waits():
    companions = Companions(pass_seconds=0.001)
    companions.settled(["a", "b"], now=0.0)
    assert _wait(companions, _view("a"), 0.0) == 0.0


def test_a_plan_that_fills_half_the_budget_starts_at_once(companions):
    assert _wait(companions, _view("a", tokens=BUDGET // 2 + 1), 100.0) == 0.0


def test_a_model_with_a_waiting_barrier_counts_as_returned(companions):
    barrier = ModelQueue("b", "tenant-b", 1, 1, (QueuedCommand("k", Op.SAVE_WEIGHTS, 1, 9),))
    assert _wait(companions, ReadyView((*_view("a", "c").models, barrier)), 100.0) == 0.0


def test_only_passes_wait(companions):
    assert companions.wait_seconds(UnloadPlan(0), _view("a"), BUDGET, 100.0) == 0.0
