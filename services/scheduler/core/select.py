"""Choose the next unit: the oldest ready work seeds it, equal work joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.scheduler.core.fairness import Turns
from services.scheduler.core.packing import Candidate, pack, waiting_batches
from services.scheduler.core.plans import BarrierStep, OptimPlan, Plan, SinglePlan, UnloadPlan
from services.scheduler.core.view import Op, ReadyView


@dataclass(frozen=True, slots=True)
class Policy:
    """`budget`: tokens of one packed pass. `weights`: turns per tenant, 1 unless named."""

    budget: int = 262_144
    fair: bool = True
    weights: Mapping[str, float] = field(default_factory=dict)


def select(view: ReadyView, policy: Policy) -> Plan | None:
    """The next unit, or None when nothing is ready.

    The seed is the ready datum or barrier whose tenant's turn it is, by arrival within a tenant
    and between tenants of equal turn (PACK-01).
    """
    if view.dirty_slots:
        return UnloadPlan(view.dirty_slots[0])
    batches = list(waiting_batches(view.models))
    barriers = list(_ready_barriers(view))
    turns = Turns(view.clock, policy.weights, fair=policy.fair)
    seed = min(batches + barriers, key=lambda c: (turns.start(c[0].tenant), c[1].arrival), default=None)
    if seed is None:
        return None
    if seed[1].op.is_batch:
        return pack(seed, batches, policy.budget, turns)
    return _barrier_plan(seed, barriers, view)


def _ready_barriers(view: ReadyView) -> Iterator[Candidate]:
    for queue in view.models:
        head = queue.barrier()
        if head is not None and (queue.slot is not None or view.free_slots):
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
