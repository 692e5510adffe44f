"""Choose the next unit: the oldest ready work seeds it, equal work joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.scheduler.core.fairness import Turns
from services.scheduler.core.packing import Candidate, pack, waiting_batches
from services.scheduler.core.plans import BarrierStep, DurablePlan, OptimPlan, Plan, SinglePlan, UnloadPlan
from services.scheduler.core.replay import next_replay
from services.scheduler.core.seating import Paging, make_room, seat
from services.scheduler.core.view import Op, ReadyView


@dataclass(frozen=True, slots=True)
class Policy:
    """`budget`: tokens of one packed pass. `weights`: turns per tenant, 1 unless named."""

    budget: int = 262_144
    fair: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)
    paging: Paging = field(default_factory=Paging)


def select(view: ReadyView, policy: Policy, *, recovered: bool = False) -> Plan | None:
    """The next unit, or None when nothing is ready.

    What is quick goes first: unloads, captures, slots that are given up. Then recovery and live work take
    turns, so that neither starves (`recovered`: the last turn was recovery's). Slots that are still free
    then go to lost models nothing waits for yet.
    """
    if view.dirty_slots:
        return UnloadPlan(view.dirty_slots[0])
    recovery = view.recovery
    if recovery.due:
        due = recovery.due[0]
        return DurablePlan(due.model_id, due.slot, due.load_number)
    if (room := make_room(recovery, policy.paging)) is not None:
        return room
    if recovered:
        return _work(view, policy) or _recovery(view, policy) or seat(recovery.lost, view.free_slots)
    return _recovery(view, policy) or _work(view, policy) or seat(recovery.lost, view.free_slots)


def _recovery(view: ReadyView, policy: Policy) -> Plan | None:
    """Seats for those that something waits for, then their logs."""
    recovery = view.recovery
    if not _create_is_older(view, policy) and (taken := seat(recovery.seekers, view.free_slots)) is not None:
        return taken
    more = bool(recovery.lost and view.free_slots)
    plan = next_replay(recovery.recovering, more_to_seat=more)
    if plan is None and recovery.recovering and more:
        return seat(recovery.lost, view.free_slots)
    return plan


def _work(view: ReadyView, policy: Policy) -> Plan | None:
    """The seed is the ready datum or barrier whose tenant's turn it is, by arrival within a tenant
    and between tenants of equal turn (PACK-01).
    """
    batches = list(waiting_batches(view.models))
    barriers = list(_ready_barriers(view, _free_for_creates(view, policy)))
    turns = Turns(view.clock, policy.weights, fair=policy.fair)
    seed = min(batches + barriers, key=lambda c: (turns.start(c[0].tenant), c[1].arrival), default=None)
    if seed is None:
        return None
    if seed[1].op.is_batch:
        return pack(seed, batches, policy.budget, turns)
    return _barrier_plan(seed, barriers, view)


def _create_is_older(view: ReadyView, policy: Policy) -> bool:
    """Whether the free slot belongs to a create, which has waited longer than any seeker."""
    since, seekers = view.recovery.create_since_ms, view.recovery.seekers
    return bool(seekers) and since is not None and since < seekers[0].since_ms and _free_for_creates(view, policy)


def _free_for_creates(view: ReadyView, policy: Policy) -> bool:
    """Without paging a lost model never gets its slot back from a new one."""
    return len(view.free_slots) > (0 if policy.paging.on else view.recovery.unseated)


def _ready_barriers(view: ReadyView, room: bool) -> Iterator[Candidate]:
    for queue in view.models:
        head = queue.barrier()
        if head is not None and (queue.slot is not None or room):
            yield queue, head


def _barrier_plan(seed: Candidate, barriers: list[Candidate], view: ReadyView) -> Plan:
    queue, head = seed
    if head.op is Op.OPTIM_STEP:
        return _merge_optim_steps(seed, barriers)
    slot = queue.slot if queue.slot is not None else view.free_slots[0]
    return SinglePlan(BarrierStep(queue, head), slot)


def _merge_optim_steps(seed: Candidate, barriers: list[Candidate]) -> OptimPlan:
    """Ready optimizer steps of all models in one call, of one group when the seed has a label (PACK-05)."""
    ready = [b for b in barriers if b[1].op is Op.OPTIM_STEP and b[1].group == seed[1].group]
    steps = [BarrierStep(queue, command) for queue, command in ready]
    return OptimPlan(tuple(sorted(steps, key=lambda step: step.queue.slot or 0)))
