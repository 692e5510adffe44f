"""Turns between tenants."""

from __future__ import annotations

from services.scheduler.core.fairness import BARRIER_COST, charged
from services.scheduler.core.plans import PassPlan
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import Clock, Op
from tests.unit.scheduler.views import barrier, batch, queue, view


def test_a_flood_is_interrupted_for_the_other_tenant_PACK_09() -> None:
    policy, clock = Policy(budget=10), Clock()
    for turn in range(3):
        flood = queue(0, batch(1, (5,) * 1000, issued=2 * turn), tenant="a")
        plan = select(view(flood, clock=clock), policy)
        assert plan is not None
        clock = Clock(charged(clock, plan, {}).virtual, {**clock.finish, **charged(clock, plan, {}).finish})
    lone = queue(1, batch(2, (5,)), tenant="b")
    plan = select(view(queue(0, batch(1, (5,) * 1000, issued=6), tenant="a"), lone, clock=clock), policy)
    assert isinstance(plan, PassPlan)
    assert "k2" in [item.command.key for item in plan.items]


def test_an_idle_tenant_saves_up_no_credit() -> None:
    clock = Clock(virtual=1000.0, finish={"busy": 1004.0})
    plan = select(view(queue(0, batch(2), tenant="idle"), clock=clock), Policy())
    assert plan is not None
    assert charged(clock, plan, {}).finish == {"idle": 1004.0}


def test_equal_turns_go_by_arrival() -> None:
    plan = select(view(queue(0, batch(2, pack="x")), queue(1, batch(1, pack="y"))), Policy())
    assert isinstance(plan, PassPlan)
    assert plan.pack_key == "y"


def test_weights_share_the_tokens() -> None:
    """Tenant a has weight 3: of many equal datums it gets about three quarters."""
    policy, clock, issued = Policy(budget=8, weights={"a": 3.0}), Clock(), {"a": 0, "b": 0}
    for _ in range(40):
        queues = [
            queue(slot, batch(slot + 1, (4,) * 500, issued=issued[name], pack=name), tenant=name)
            for slot, name in enumerate("ab")
        ]
        plan = select(view(*queues, clock=clock), policy)
        assert isinstance(plan, PassPlan)
        after = charged(clock, plan, policy.weights)
        clock = Clock(after.virtual, {**clock.finish, **after.finish})
        for item in plan.items:
            issued[item.queue.tenant] += item.count
    assert 0.7 < issued["a"] / sum(issued.values()) < 0.8


def test_with_fairness_off_arrival_alone_decides() -> None:
    clock = Clock(virtual=0.0, finish={"a": 1e9})
    queues = (queue(0, batch(1, pack="x"), tenant="a"), queue(1, batch(2, pack="y"), tenant="b"))
    plan = select(view(*queues, clock=clock), Policy(fair=False))
    assert isinstance(plan, PassPlan)
    assert plan.pack_key == "x"


def test_barriers_are_charged_and_creates_are_not() -> None:
    step = select(view(queue(0, barrier(1), tenant="a")), Policy())
    create = select(view(queue(None, barrier(1, Op.CREATE, seq=0), tenant="a"), free=(0,)), Policy())
    assert step is not None
    assert create is not None
    assert charged(Clock(), step, {}).finish == {"a": float(BARRIER_COST)}
    assert charged(Clock(), create, {}).finish == {"a": 0.0}
