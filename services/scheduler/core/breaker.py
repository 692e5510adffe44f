"""When to stop trying: units fail one after the other although nothing is left to isolate (FAIL-16).

One bad request fails alone and the next unit succeeds. When the last `TRIPS` units, each of one
request and of more than one model between them, all failed, the fault is the trainer's: going on
would burn every tenant's queue.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

TRIPS = 5


@dataclass(slots=True)
class Breaker:
    """Of one trainer incarnation under one leader. `failed`: the models of the failures in a row."""

    failed: list[str] = field(default_factory=list)

    def saw(self, models: Collection[str], *, failed: bool, lone: bool) -> bool:
        """Notes a unit's end; whether that was one failure too many.

        `failed`: as a whole, by the mesh's fault. A shared unit that failed says nothing yet: its
        halves will.
        """
        if not failed:
            self.failed.clear()
        elif lone:
            self.failed.extend(models)
            del self.failed[:-TRIPS]
        return len(self.failed) >= TRIPS and len(set(self.failed)) > 1
