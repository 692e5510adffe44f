"""A job that has not ended, in the hands of the lease holder."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

from services.scheduler.jobs.files import Place
from services.scheduler.jobs.task_run import TaskRun
from services.scheduler.store.jobs import JobRow


class OpenJob:
    """Hands out the indexes of its tasks: those that ran when their scheduler died first, then in order."""

    def __init__(self, row: JobRow, interrupted: Iterable[int]) -> None:
        self.row = row
        self.place = Place(row.job.pool, row.directory)
        self.offsets: array[int] | None = None  # of its lines, once the first task is about to run
        self.runs: dict[int, TaskRun] = {}
        self.cancelled = row.cancelled
        self._again = deque(interrupted)
        self._next = row.number("next")
        self._count = row.number("tasks")

    @property
    def tenant_id(self) -> str:
        return self.row.tenant_id

    @property
    def waits(self) -> bool:
        """A task of it is to be run."""
        return bool(self._again) or (not self.cancelled and self._next < self._count)

    @property
    def over(self) -> bool:
        return not self.waits and not self.runs

    def take(self) -> int:
        """The index of the next task. Raises IndexError when none waits."""
        if self._again:
            return self._again.popleft()
        if not self.waits:
            raise IndexError("no task waits")
        self._next += 1
        return self._next - 1

    def give_back(self, index: int) -> None:
        self._again.appendleft(index)

    def cancel(self) -> None:
        """Running tasks end with what they have; nothing new begins."""
        self.cancelled = True
        for run in self.runs.values():
            run.cancel()
