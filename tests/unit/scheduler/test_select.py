"""Which unit comes next."""

from __future__ import annotations

from services.scheduler.core.plans import OptimPlan, PassPlan, SinglePlan, UnloadPlan
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import Op
from tests.unit.scheduler.views import barrier, batch, queue, view

POLICY = Policy(budget=100)


def packed(plan: object) -> list[tuple[str, int, int]]:
    assert isinstance(plan, PassPlan)
    return [(item.command.key, item.first, item.count) for item in plan.items]


def test_nothing_ready_gives_no_unit() -> None:
    assert select(view(), POLICY) is None
    assert select(view(queue(0, batch(1, (4, 4), issued=2))), POLICY) is None


def test_the_older_of_barrier_and_batch_goes_first_PACK_01() -> None:
    assert isinstance(select(view(queue(0, barrier(1)), queue(1, batch(2))), POLICY), OptimPlan)
    assert isinstance(select(view(queue(0, barrier(2)), queue(1, batch(1))), POLICY), PassPlan)


def test_the_oldest_of_a_run_seeds_even_behind_a_younger_head_PACK_01_ORD_02() -> None:
    """Chunks 2 and 3 arrived first, chunk 1 last: the run is as old as its oldest datum."""
    late_head = queue(0, batch(9, pack="x"), batch(1, seq=2, pack="y"), tenant="a")
    plan = select(view(late_head, queue(1, batch(5, pack="z"), tenant="b")), POLICY)
    assert packed(plan) == [("k1", 0, 1)]


def test_only_equal_pack_keys_join_PACK_02_PACK_04() -> None:
    plan = select(view(queue(0, batch(1)), queue(1, batch(2, pack="ppo")), queue(2, batch(3))), POLICY)
    assert packed(plan) == [("k1", 0, 1), ("k3", 0, 1)]


def test_compatible_work_overtakes_inside_its_own_run_PACK_04() -> None:
    plan = select(view(queue(0, batch(1), batch(2, seq=2, pack="ppo"), batch(3, seq=3))), POLICY)
    assert packed(plan) == [("k1", 0, 1), ("k3", 0, 1)]


def test_nothing_overtakes_a_barrier_of_its_own_model_PACK_04_ORD_05() -> None:
    blocked = queue(1, batch(2, pack="ppo"), barrier(3, seq=2), batch(4, seq=3))
    assert packed(select(view(queue(0, batch(1)), blocked), POLICY)) == [("k1", 0, 1)]


def test_a_rejected_command_ends_the_run_ORD_05() -> None:
    run = queue(0, batch(1), batch(2, seq=2), batch(3, seq=3, rejected=True), batch(4, seq=4))
    assert packed(select(view(run), POLICY)) == [("k1", 0, 1), ("k2", 0, 1)]


def test_a_barrier_behind_unreported_datums_is_not_ready_ORD_06() -> None:
    assert select(view(queue(0, batch(1, (4,), issued=1), barrier(2, seq=2))), POLICY) is None


def test_the_budget_stops_at_the_first_that_does_not_fit_PACK_03() -> None:
    ten = Policy(budget=10)
    assert packed(select(view(queue(0, batch(1, (5, 5, 5)))), ten)) == [("k1", 0, 2)]
    assert packed(select(view(queue(0, batch(1, (5, 5, 5), issued=2))), ten)) == [("k1", 2, 1)]
    assert packed(select(view(queue(0, batch(1, (11,)))), Policy(budget=2))) == [("k1", 0, 1)]


def test_a_small_datum_does_not_slip_past_one_that_does_not_fit_PACK_03() -> None:
    """It stops, it does not skip: the oldest waiting datum seeds the next pass."""
    plan = select(view(queue(0, batch(1, (6,)), batch(2, (8,), seq=2), batch(3, (1,), seq=3))), Policy(budget=10))
    assert packed(plan) == [("k1", 0, 1)]


def test_optimizer_steps_of_all_ready_models_merge_by_slot_PACK_05() -> None:
    plan = select(view(queue(2, barrier(1)), queue(0, barrier(2)), queue(1, barrier(3, Op.SAVE_WEIGHTS))), POLICY)
    assert isinstance(plan, OptimPlan)
    assert [step.queue.slot for step in plan.steps] == [0, 2]


def test_other_barriers_run_singly_PACK_05() -> None:
    plan = select(view(queue(0, barrier(1, Op.SAVE_WEIGHTS)), queue(1, barrier(2, Op.SAVE_WEIGHTS))), POLICY)
    assert isinstance(plan, SinglePlan)
    assert (plan.slot, plan.step.command.key) == (0, "k1")


def test_items_are_slot_contiguous_PACK_08() -> None:
    queues = [queue(3, batch(1), batch(3, seq=2)), queue(0, batch(2)), queue(1, batch(4))]
    assert packed(select(view(*queues), POLICY)) == [("k2", 0, 1), ("k4", 0, 1), ("k1", 0, 1), ("k3", 0, 1)]


def test_a_create_needs_a_free_slot_and_takes_the_lowest_IDEM_12() -> None:
    waiting = queue(None, barrier(1, Op.CREATE, seq=0))
    assert select(view(waiting), POLICY) is None
    plan = select(view(waiting, free=(2, 3)), POLICY)
    assert isinstance(plan, SinglePlan)
    assert plan.slot == 2


def test_a_dirty_slot_is_unloaded_before_anything_else() -> None:
    assert select(view(queue(0, batch(1)), dirty=(4,)), POLICY) == UnloadPlan(4)


def test_only_equal_groups_share_a_unit_FAIL_13() -> None:
    a, b, c = queue(0, batch(1, group="u.0")), queue(1, batch(2)), queue(2, batch(3, group="u.0"))
    assert packed(select(view(a, b, c), POLICY)) == [("k1", 0, 1), ("k3", 0, 1)]
    assert packed(select(view(queue(0, batch(1)), queue(1, batch(2, group="u.0"))), POLICY)) == [("k1", 0, 1)]
    steps = [queue(0, barrier(1, group="u.0")), queue(1, barrier(2)), queue(2, barrier(3, group="u.0"))]
    plan = select(view(*steps), POLICY)
    assert isinstance(plan, OptimPlan)
    assert [step.command.key for step in plan.steps] == ["k1", "k3"]
