"""Weighted turns, as the theory of start-time fair queueing promises them: on the pure core, and for samples."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.plans import PassPlan
from services.scheduler.core.select import Policy
from services.scheduler.core.view import ModelQueue, Op, QueuedCommand
from services.scheduler.sampling.turns import Turns
from tests.unit.scheduler.test_core_properties import Pool

WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 8.0])


def flood(key: str, arrival: int, cost: int, pack: str) -> QueuedCommand:
    return QueuedCommand(key, Op.FORWARD_BACKWARD, 1, arrival, pack, (cost,) * 4000)


def served(pool: Pool, since: int = 0) -> dict[str, int]:
    """Tokens per tenant in the plans from number `since` on."""
    tokens = {"a": 0, "b": 0}
    for plan in pool.plans[since:]:
        assert isinstance(plan, PassPlan)
        for item in plan.items:
            tokens[item.queue.tenant] += item.cost
    return tokens


def backlogged(costs: tuple[int, int], budget: int, weights: tuple[float, float], *, one_key: bool) -> Pool:
    packs = ("x", "x") if one_key else ("x", "y")
    queues = [
        ModelQueue(name, name, slot, 1, (flood(name, slot + 1, cost, pack),))
        for slot, (name, cost, pack) in enumerate(zip("ab", costs, packs, strict=True))
    ]
    return Pool(queues, Policy(budget, weights=dict(zip("ab", weights, strict=True))))


@settings(max_examples=120, deadline=None)
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.integers(12, 48),
    st.tuples(WEIGHTS, WEIGHTS),
    st.booleans(),
    st.integers(0, 20),
    st.integers(5, 40),
)
def test_in_any_stretch_two_busy_tenants_get_what_their_weights_say_PACK_09(
    costs: tuple[int, int], budget: int, weights: tuple[float, float], one_key: bool, skipped: int, turns: int
) -> None:
    """|A/wA - B/wB| stays within one largest unit of each, however long the stretch."""
    pool = backlogged(costs, budget, weights, one_key=one_key)
    for _ in range(skipped + turns):
        pool.turn()
    tokens = served(pool, skipped)
    unit = max(budget, *costs)
    lag = abs(tokens["a"] / weights[0] - tokens["b"] / weights[1])
    assert lag <= (unit + costs[0]) / weights[0] + (unit + costs[1]) / weights[1]


def test_twice_the_weight_is_twice_the_share_PACK_09() -> None:
    pool = backlogged((4, 4), 24, (2.0, 1.0), one_key=True)
    for _ in range(300):
        pool.turn()
    tokens = served(pool)
    assert 1.98 < tokens["a"] / tokens["b"] < 2.02


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), WEIGHTS, WEIGHTS, st.integers(1, 12), st.integers(12, 40))
def test_a_newcomers_first_datum_is_in_the_second_unit_at_the_latest_whatever_the_weights_PACK_09(
    before: int, mine: float, theirs: float, cost: int, budget: int
) -> None:
    pool = backlogged((cost, 1), budget, (theirs, mine), one_key=False)
    newcomer = pool.queues[1]
    pool.queues[1] = replace(newcomer, commands=())
    for _ in range(before):
        pool.turn()
    pool.queues[1] = newcomer
    pool.turn()
    pool.turn()
    assert served(pool, before)["b"] > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30))
def test_time_alone_is_no_credit_PACK_09(alone: int, together: int) -> None:
    """A tenant that was away while another worked does not catch up: from its return on, shares are equal."""
    pool = backlogged((2, 2), 16, (1.0, 1.0), one_key=False)
    late = pool.queues[1]
    pool.queues[1] = replace(late, commands=())
    for _ in range(alone):
        pool.turn()
    pool.queues[1] = late
    for _ in range(together):
        pool.turn()
    tokens = served(pool, alone)
    assert abs(tokens["a"] - tokens["b"]) <= 2 * (16 + 2)


# ---- samples ---------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(WEIGHTS, st.integers(1, 16)), min_size=2, max_size=4), st.integers(0, 50), st.integers(10, 200)
)
def test_samples_are_taken_as_the_weights_say(tenants: list[tuple[float, int]], skipped: int, taken: int) -> None:
    """Each tenant's samples have a size of their own; the bound is one sample of each."""
    names = [f"t{number}" for number in range(len(tenants))]
    weights = {name: weight for name, (weight, _) in zip(names, tenants, strict=True)}
    size = {name: cost for name, (_, cost) in zip(names, tenants, strict=True)}
    turns: Turns[str] = Turns(weights=weights, cost=lambda name: size[name])
    for name in names:
        for _ in range(skipped + taken):
            turns.join(name, name)
    for _ in range(skipped):
        turns.take()
    got = dict.fromkeys(names, 0)
    for _ in range(taken):
        name = turns.take()
        got[name] += size[name]
    for one in names:
        for other in names:
            lag = abs(got[one] / weights[one] - got[other] / weights[other])
            assert lag <= size[one] / weights[one] + size[other] / weights[other] + 1e-9


def test_a_sample_that_comes_back_is_not_charged_twice() -> None:
    turns: Turns[str] = Turns(cost=lambda item: 8.0)
    for item in ("a1", "a2", "b1", "b2"):
        turns.join(item[0], item)
    for _ in range(5):
        taken = turns.take()
        turns.rejoin(taken[0], taken)
    assert sorted(turns.take() for _ in range(2)) == ["a1", "b1"]


def test_a_newcomers_sample_is_next_behind_a_flood() -> None:
    turns: Turns[str] = Turns(weights={"b": 0.25})
    for number in range(10_000):
        turns.join("a", f"a{number}")
    for _ in range(500):
        turns.take()
    turns.join("b", "b1")
    assert "b1" in (turns.take(), turns.take())


def test_weights_may_change_while_tenants_wait() -> None:
    weights: dict[str, float] = {}
    turns: Turns[str] = Turns(weights=weights)
    for name in 400 * "ab":
        turns.join(name, name)
    equal = [turns.take() for _ in range(100)]
    weights["a"] = 3.0
    weighted = [turns.take() for _ in range(200)]
    assert abs(equal.count("a") - 50) <= 1
    assert abs(weighted.count("a") - 150) <= 3
