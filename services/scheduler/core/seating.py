"""Who gets a free slot, and who gives one up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.scheduler.core.plans import DurablePlan, PagePlan, SeatPlan, UnloadPlan
from services.scheduler.core.seats import RecoveryView, Seated, Seeker
from services.scheduler.core.view import ReadyView


@dataclass(frozen=True, slots=True)
class Paging:
    """Whether idle models give up their slots to others that need one.

    A victim has been idle for `idle_ms`; when all are busy and somebody has waited for `after_ms`, the one
    that has been seated longest gives way.
    """

    on: bool = True
    idle_ms: int = 200
    after_ms: int = 2000


DEFAULT_PAGING = Paging()


def seat(seekers: Sequence[Seeker], free: Sequence[int]) -> SeatPlan | None:
    """The one that waits longest, in the slot it had if that is free: then units are re-formed as they were."""
    if not seekers or not free:
        return None
    first = seekers[0]
    if first.home in free:
        return SeatPlan(first.model_id, first.home if first.home is not None else free[0])
    homes = {seeker.home for seeker in seekers}
    return SeatPlan(first.model_id, next((slot for slot in free if slot not in homes), free[0]))


def make_room(view: RecoveryView, paging: Paging) -> DurablePlan | PagePlan | None:
    """Frees a slot for whoever waits for one; nothing while a victim's durable point is on its way."""
    since = _waiting_since(view)
    if not paging.on or since is None or not view.seated:
        return None
    victim = _victim(view, paging, since)
    if victim is None or victim.capturing:
        return None
    if victim.uncovered:  # its log would have to be replayed step by step when it comes back
        return DurablePlan(victim.model_id, victim.slot, victim.load_number)
    return PagePlan(victim.model_id)


def leave(view: ReadyView) -> UnloadPlan | DurablePlan | PagePlan | None:
    """The next step of emptying a trainer, or None while there is nothing to do but wait."""
    if view.dirty_slots:
        return UnloadPlan(view.dirty_slots[0])
    for queue in view.recovery.recovering:
        return PagePlan(queue.model_id)
    for seated in view.recovery.seated:
        if seated.uncovered and not seated.capturing:
            return DurablePlan(seated.model_id, seated.slot, seated.load_number)
    for seated in view.recovery.seated:
        if not seated.capturing:
            return PagePlan(seated.model_id)
    return None


def _waiting_since(view: RecoveryView) -> int | None:
    waits = [seeker.since_ms for seeker in view.seekers[:1]]
    if view.create_since_ms is not None:
        waits.append(view.create_since_ms)
    return min(waits, default=None)


def _victim(view: RecoveryView, paging: Paging, since: int) -> Seated | None:
    idle = [s for s in view.seated if s.idle_since_ms is not None and view.now_ms - s.idle_since_ms >= paging.idle_ms]
    if idle:  # one whose durable point is on its way was chosen before
        return min(idle, key=lambda s: (not s.capturing, s.idle_since_ms, s.slot))
    if view.now_ms - since < paging.after_ms:
        return None
    served = [s for s in view.seated if view.now_ms - s.seated_ms >= paging.after_ms]
    return min(served, key=lambda s: (not s.capturing, s.seated_ms, s.slot), default=None)


def retry_seconds(view: RecoveryView, paging: Paging) -> float | None:
    """When to look again while somebody waits for a slot and nobody can give one up yet; None: nobody waits."""
    if not paging.on or _waiting_since(view) is None:
        return None
    return max(0.01, min(0.05, paging.idle_ms / 4000))
