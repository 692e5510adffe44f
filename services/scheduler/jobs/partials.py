"""Saves what running tasks generate, for all tasks of a pool in one call, about once a second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from services.common.errors import Unavailable
from services.scheduler.jobs.limits import FLUSH_TOKENS
from services.scheduler.jobs.output import TaskOutput
from services.scheduler.store.jobs import Growth, JobStore
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

BYTES_PER_CALL = 256 << 10


class Partials:
    def __init__(self, store: JobStore, pool: str, term: int, period_seconds: float) -> None:
        self._store = store
        self._pool = pool
        self._term = term
        self._period = period_seconds
        self._dirty: dict[TaskOutput, None] = {}
        self._many = asyncio.Event()
        self._saving = asyncio.Lock()

    def note(self, output: TaskOutput) -> None:
        """It has grown."""
        self._dirty[output] = None
        if output.unsaved >= FLUSH_TOKENS:
            self._many.set()

    def drop(self, output: TaskOutput) -> None:
        """Its result is in its file."""
        self._dirty.pop(output, None)

    async def run(self) -> None:
        """Until cancelled; what cannot be saved now is saved later. Raises StaleFence."""
        while True:
            await wait_at_most(self._many, self._period)
            self._many.clear()
            try:
                await self.save()
            except Unavailable as error:
                log.warning("pool %s: partial outputs wait to be saved: %s", self._pool, error)
                await asyncio.sleep(self._period)

    async def save(self) -> None:
        """Everything there is now. Raises Unavailable, StaleFence."""
        async with self._saving:
            outputs = list(self._dirty)
            grown = [(output, growth) for output in outputs for growth in output.growth()]
            for portion in _portions(grown):
                await self._store.append(self._pool, self._term, [growth for _, growth in portion])
                for output, growth in portion:
                    output.saved(growth)
            for output in outputs:
                if next(output.growth(), None) is None:
                    self.drop(output)


def _portions(grown: Iterable[tuple[TaskOutput, Growth]]) -> Iterable[list[tuple[TaskOutput, Growth]]]:
    portion, size = list[tuple[TaskOutput, Growth]](), 0
    for pair in grown:
        portion.append(pair)
        size += len(pair[1].data) + len(pair[1].text)
        if size >= BYTES_PER_CALL:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
