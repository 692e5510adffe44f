"""The log applied again: which entries go together, and whether they came to the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.scheduler.core.plans import ReplayPlan, ReplayStep
from services.scheduler.core.seats import ReplayQueue

LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 1e-2
"""Relative, and absolute below 1.

Rounding of another packing stays far below; another batch or another step far above.
"""


def next_replay(queues: Sequence[ReplayQueue], *, more_to_seat: bool) -> ReplayPlan | None:
    """The unit to form again, as logged whenever all its models are there.

    Models that something waits for come first. A unit that others shared is complete once all of them have
    it next; until then the oldest entries of all go, which brings the others there. None while a model
    that may be one of them can still be seated (`more_to_seat`).
    """
    heads = [queue for queue in queues if queue.entries]
    if not heads:
        return None
    ready = [queue for queue in heads if _complete(queue, heads)]
    first = min(ready, key=lambda queue: (not queue.waits, queue.number), default=None)
    oldest = min(heads, key=lambda queue: queue.number)
    if first is None or (oldest.waits and not first.waits):
        if more_to_seat:
            return None
        first = oldest
    elif not first.waits and any(queue.waits for queue in heads):
        first = oldest  # what waits is held up by a shared unit: go there in the order of the log
    return ReplayPlan(_steps(first, heads))


def _complete(queue: ReplayQueue, heads: Sequence[ReplayQueue]) -> bool:
    return queue.alone or len(_together(queue, heads)) >= queue.entries[0].models


def _together(first: ReplayQueue, heads: Sequence[ReplayQueue]) -> list[ReplayQueue]:
    if first.alone:
        return [first]
    unit = first.entries[0].unit
    return [queue for queue in heads if queue.entries[0].unit == unit and not queue.alone]


def _steps(first: ReplayQueue, heads: Sequence[ReplayQueue]) -> tuple[ReplayStep, ...]:
    """Sorted by slot, log order inside a slot."""
    together = sorted(_together(first, heads), key=lambda queue: queue.slot)
    return tuple(ReplayStep(queue, entry) for queue in together for entry in queue.entries)


def divergence(recorded: str, observed: float | None, tolerance: float) -> str:
    """Why `observed` is not what was `recorded`; "" = it is, or nothing was recorded."""
    if not recorded:
        return ""
    before = float(recorded)
    if observed is None or not math.isclose(before, observed, rel_tol=tolerance, abs_tol=tolerance):
        return f"the replay came to {observed!r} where {before!r} was recorded"
    return ""
