"""Models whose work settled together usually ask again together, within milliseconds.

Starting a pass with the first of them leaves the others to a second pass, which costs nearly as
much again when batches are small. So a pass waits for the rest, briefly: at most a twentieth of
what the last pass took, counted from the settlement they shared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from services.scheduler.core.plans import PassPlan, Plan
from services.scheduler.core.view import ReadyView

SHARE = 0.05
LONGEST_SECONDS = 0.05
SHORTEST_SECONDS = 0.001


@dataclass(slots=True)
class Companions:
    """`now` is any clock in seconds that never goes back."""

    pass_seconds: float = 0.0
    expected: frozenset[str] = frozenset()
    until: float = 0.0

    def settled(self, models: Collection[str], now: float) -> None:
        """A unit that carried `models` has settled."""
        self.expected = frozenset(models)
        self.until = now + min(LONGEST_SECONDS, SHARE * self.pass_seconds)

    def wait_seconds(self, plan: Plan, view: ReadyView, budget: int, now: float) -> float:
        """How long `plan` had better wait for companions that have nothing ready yet; 0: not at all."""
        left = self.until - now
        if left < SHORTEST_SECONDS or len(self.expected) < 2 or not isinstance(plan, PassPlan):
            return 0.0
        if plan.items[0].command.group:  # its company is fixed
            return 0.0
        if 2 * sum(item.cost for item in plan.items) > budget:  # little room for them
            return 0.0
        ready = {queue.model_id for queue in view.models if queue.commands}
        return left if self.expected - ready else 0.0
