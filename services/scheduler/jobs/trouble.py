"""When a task that gets nowhere is given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from services.common.errors import Busy, ServerError, TinkermeshError, Unavailable, UserError
from services.scheduler.jobs.limits import JobLimits

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class Trouble:
    """Attempts since the last new token. `clock` in seconds."""

    def __init__(self, limits: JobLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """There was a new token."""
        self._since = 0.0
        self._attempts = 0
        self._broken = 0  # streams that a sampler ended wrongly, without being lost
        self._lost_on: set[str] = set()  # incarnations that went away under the task

    def judge(self, error: TinkermeshError, lives: Collection[str] = ()) -> float:
        """Seconds to wait before the next attempt. Raises the error that ends the task.

        `lives`: incarnations of the samplers that had it. A sampler that is away refuses at once and again, which
        says nothing of the task; one that took several samplers with it may be the cause. Nor does no room say
        anything of it: a task waits for others however long they take, as it does in the queue.
        """
        if isinstance(error, UserError) and not isinstance(error, Busy):
            raise error
        self._attempts += 1
        if isinstance(error, Busy):
            self._since = 0.0
        else:
            self._count(error, lives)
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._attempts - 1, 10))

    def _count(self, error: TinkermeshError, lives: Collection[str]) -> None:
        now = self._clock()
        self._since = self._since or now
        if isinstance(error, Unavailable):
            self._lost_on.update(lives)
        else:
            self._broken += 1
        self._check(error, now - self._since)

    def _check(self, error: TinkermeshError, seconds: float) -> None:
        if len(self._lost_on) >= self._limits.losses:
            raise ServerError(f"{error.message} ({len(self._lost_on)} samplers were lost, one after the other)")
        if self._broken >= self._limits.losses:
            raise ServerError(f"{error.message} ({self._broken} attempts in a row brought no token)")
        if seconds > self._limits.trouble_seconds:
            raise ServerError(f"{error.message} (tried for {seconds:.0f} s)")
