"""Who gets a slot, who gives one up, and that recovery and live work take turns."""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.core.plans import (
    DurablePlan,
    PagePlan,
    PassPlan,
    Plan,
    ReplayPlan,
    SeatPlan,
    SinglePlan,
    UnloadPlan,
)
from services.scheduler.core.seating import Paging, leave, make_room, retry_seconds, seat
from services.scheduler.core.seats import Due, LogEntry, RecoveryView, ReplayQueue, Seated, Seeker
from services.scheduler.core.select import Policy, select
from services.scheduler.core.view import ModelQueue, Op, QueuedCommand, ReadyView

PAGING = Paging(on=True, idle_ms=200, after_ms=2000)
NOW = 100_000


def room(
    *seated: Seated, waited_ms: int = 10, paging: Paging = PAGING, **more: object
) -> DurablePlan | PagePlan | None:
    view = RecoveryView(seekers=(Seeker("seeker", NOW - waited_ms),), seated=seated, now_ms=NOW)
    return make_room(replace(view, **more), paging)  # type: ignore[arg-type]


def idle(model: str, ms: int, **more: object) -> Seated:
    return replace(Seated(model, 0, 1, NOW - ms, NOW - 50_000), **more)  # type: ignore[arg-type]


def busy(model: str, seated_ms: int) -> Seated:
    return Seated(model, 0, 1, None, NOW - seated_ms)


def test_the_one_idle_longest_gives_up_its_slot() -> None:
    assert room(idle("short", 300), idle("long", 900), busy("busy", 9000)) == PagePlan("long")


def test_one_that_was_used_a_moment_ago_keeps_it() -> None:
    assert room(idle("just now", 100)) is None
    assert retry_seconds(RecoveryView(seekers=(Seeker("s", NOW),)), PAGING) is not None


def test_what_no_durable_point_covers_is_saved_first_and_awaited() -> None:
    assert room(idle("a", 900, uncovered=True)) == DurablePlan("a", 0, 1)
    assert room(idle("a", 900, uncovered=True, capturing=True), idle("b", 950)) is None


def test_when_all_are_busy_the_one_seated_longest_gives_way_in_the_end() -> None:
    assert room(busy("a", 5000), busy("b", 9000)) is None
    assert room(busy("a", 5000), busy("b", 9000), waited_ms=2001) == PagePlan("b")
    assert room(busy("new", 1000), waited_ms=9000) is None  # each gets some time


def test_a_waiting_create_is_reason_enough_and_without_paging_nothing_is() -> None:
    assert room(idle("a", 900), seekers=(), create_since_ms=NOW) == PagePlan("a")
    assert room(idle("a", 900), seekers=()) is None
    assert room(idle("a", 900), paging=Paging(on=False)) is None


def test_a_seat_is_the_slot_the_model_had_and_nobody_elses_if_possible() -> None:
    assert seat([Seeker("a", 1, home=2)], [0, 2]) == SeatPlan("a", 2)
    assert seat([Seeker("a", 1, home=5), Seeker("b", 2, home=0)], [0, 1]) == SeatPlan("a", 1)
    assert seat([Seeker("a", 1)], []) is None


def batch(model: str, slot: int) -> ModelQueue:
    command = QueuedCommand(f"{model}-1", Op.FORWARD_BACKWARD, 1, 1, "pack", (4,))
    return ModelQueue(model, "tenant", slot, 1, (command,))


def create(model: str) -> ModelQueue:
    return ModelQueue(model, "tenant", None, 0, (QueuedCommand(f"{model}-0", Op.CREATE, 0, 5),))


def replaying(model: str, slot: int) -> ReplayQueue:
    entry = LogEntry(0, "forward_backward", "key", "unit", 1)
    return ReplayQueue(model, "tenant", slot, 1, (entry,), waits=True)


def kinds(view: ReadyView, *, recovered: bool, policy: Policy = Policy()) -> type[Plan] | None:  # noqa: B008
    plan = select(view, policy, recovered=recovered)
    return None if plan is None else type(plan)


def test_recovery_and_live_work_take_turns() -> None:
    view = ReadyView((batch("live", 1),), recovery=RecoveryView(recovering=(replaying("lost", 0),)))
    assert kinds(view, recovered=False) is ReplayPlan
    assert kinds(view, recovered=True) is PassPlan
    assert kinds(replace(view, models=()), recovered=True) is ReplayPlan


def test_a_due_durable_point_goes_first_and_seekers_before_replays() -> None:
    recovery = RecoveryView(recovering=(replaying("lost", 0),), seekers=(Seeker("s", 1),), due=(Due("d", 2, 1),))
    view = ReadyView((), free_slots=(3,), recovery=recovery)
    assert kinds(view, recovered=False) is DurablePlan
    assert kinds(replace(view, recovery=replace(recovery, due=())), recovered=False) is SeatPlan


def test_idle_lost_models_are_seated_when_nothing_else_is_to_do() -> None:
    recovery = RecoveryView(lost=(Seeker("idle", 1),), unseated=1)
    assert kinds(ReadyView((), free_slots=(0,), recovery=recovery), recovered=False) is SeatPlan
    assert kinds(ReadyView((batch("live", 1),), free_slots=(0,), recovery=recovery), recovered=False) is PassPlan


def test_without_paging_a_create_leaves_lost_models_their_slots() -> None:
    recovery = RecoveryView(unseated=1)
    view = ReadyView((create("new"),), free_slots=(0,), recovery=recovery)
    assert kinds(view, recovered=True, policy=Policy(paging=Paging(on=False))) is None
    assert kinds(view, recovered=True) is SinglePlan
    assert kinds(replace(view, free_slots=(0, 1)), recovered=True, policy=Policy(paging=Paging(on=False))) is SinglePlan


def test_a_trainer_is_emptied_by_what_is_quick_first_and_nobody_leaves_uncovered() -> None:
    replaying = ReplayQueue("r", "t", 3, 1, ())
    seated = (idle("covered", 0), idle("open", 0, uncovered=True), busy("written", 9000))
    whole = ReadyView((), dirty_slots=(2,), recovery=RecoveryView(recovering=(replaying,), seated=seated))
    assert leave(whole) == UnloadPlan(2)
    clean = replace(whole, dirty_slots=())
    assert leave(clean) == PagePlan("r")
    alone = replace(clean, recovery=RecoveryView(seated=seated))
    assert leave(alone) == DurablePlan("open", 0, 1)
    begun = replace(alone, recovery=RecoveryView(seated=(seated[0], idle("open", 0, uncovered=True, capturing=True))))
    assert leave(begun) == PagePlan("covered")
    assert leave(replace(begun, recovery=RecoveryView(seated=begun.recovery.seated[1:]))) is None
