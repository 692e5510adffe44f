"""Weighted turns between tenants: start-time fair queueing over tokens.

Each tenant owns a finish tag. Its next work starts at max(its tag, the pool's virtual time), so
an idle tenant saves up no credit; the smallest start goes first, and ties go to the oldest
arrival. A tenant that floods the pool is therefore at most one unit ahead of any other. When
nothing is left to do all tags are forgotten: turns count only where tenants compete.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.scheduler.core.plans import OptimPlan, PassPlan, Plan, SinglePlan
from services.scheduler.core.view import Clock

BARRIER_COST = 512
"""Tokens a barrier is charged with: a save or step holds the trainer about as long as this.
Creates cost nothing, slots bound them."""


class Turns:
    """The clock while one unit is put together; with `fair` off every start is equal."""

    def __init__(self, clock: Clock, weights: Mapping[str, float], *, fair: bool) -> None:
        self._clock = clock
        self._weights = weights
        self._fair = fair
        self._finish: dict[str, float] = {}

    def start(self, tenant: str) -> float:
        if not self._fair:
            return 0.0
        known = self._finish.get(tenant, self._clock.finish.get(tenant, 0.0))
        return max(known, self._clock.virtual)

    def charge(self, tenant: str, tokens: int) -> None:
        self._finish[tenant] = self.start(tenant) + tokens / self._weights.get(tenant, 1.0)

    @property
    def finish(self) -> dict[str, float]:
        return dict(self._finish)


def charges(plan: Plan) -> list[tuple[str, int]]:
    """(tenant, tokens) of everything a plan issues."""
    if isinstance(plan, PassPlan):
        return [(item.queue.tenant, item.cost) for item in plan.items]
    if isinstance(plan, OptimPlan):
        return [(step.queue.tenant, BARRIER_COST) for step in plan.steps]
    if isinstance(plan, SinglePlan):
        return [(plan.step.queue.tenant, 0 if plan.step.command.op.is_create else BARRIER_COST)]
    return []


def charged(clock: Clock, plan: Plan, weights: Mapping[str, float]) -> Clock:
    """The clock after `plan` was issued; `finish` holds only the tenants that changed."""
    turns = Turns(clock, weights, fair=True)
    paid = charges(plan)
    virtual = min((turns.start(tenant) for tenant, _ in paid), default=clock.virtual)
    for tenant, tokens in paid:
        turns.charge(tenant, tokens)
    return Clock(virtual, turns.finish)
