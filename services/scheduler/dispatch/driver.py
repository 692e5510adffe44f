"""Drives the trainers of a pool, one cell beside the other, while this replica holds the pool's lease: a
ports.LeaderTask.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable

from services.scheduler.dispatch.cell_driver import IDLE_SECONDS, CellDriver, Driving, Place
from services.scheduler.dispatch.running import Running
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

FORGET_SECONDS = 60.0
"""How often cells without a trainer are looked at: one that nothing is left of is forgotten."""


class Driver:
    def __init__(self, driving: Driving) -> None:
        self._driving = driving
        self._parts = driving.parts
        self._running = Running()
        self._wakes: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._trainers: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def wake(self, pool: str) -> None:
        """There may be work."""
        for event in self._wakes[pool]:
            event.set()

    def trainers_changed(self, pool: str) -> None:
        """There may be another trainer, or one is drained or serves again."""
        self._trainers[pool].set()
        self.wake(pool)

    def wake_all(self) -> None:
        for pool in list(self._trainers):
            self.trainers_changed(pool)

    async def drain(self, seconds: float) -> None:
        """No further unit starts; waits for the running ones, at most `seconds`."""
        self._running.stopping = True
        self.wake_all()
        if not await self._running.idle(seconds):
            log.warning("units still run after %s s; the next leader settles them", seconds)

    async def run(self, pool: str, term: int) -> None:
        """Until cancelled or drained. Raises StaleFence when another term has begun, Unavailable without Redis."""
        tasks: dict[str, asyncio.Task[None]] = {}
        changed = self._trainers[pool]
        forget_at = time.monotonic() + FORGET_SECONDS
        try:
            while not self._running.stopping:
                changed.clear()
                if time.monotonic() >= forget_at:
                    forget_at = time.monotonic() + FORGET_SECONDS
                    await self._forget(pool, term, tasks)
                for cell in await self._cells(pool):
                    if cell not in tasks:
                        tasks[cell] = self._start(Place(pool, cell, term), changed)
                await wait_at_most(changed, IDLE_SECONDS)
                _raise_first(tasks.values())
            await asyncio.gather(*tasks.values())
        finally:
            await end_tasks(tasks.values())

    async def _cells(self, pool: str) -> list[str]:
        known = await self._parts.cells.known(pool)
        return list(dict.fromkeys([*known, *await self._driving.directory.cells(pool)]))

    def _start(self, place: Place, ended: asyncio.Event) -> asyncio.Task[None]:
        driver = CellDriver(place, self._driving, self._running)
        self._wakes[place.pool].add(driver.wake)
        task = asyncio.create_task(driver.run())

        def over(_: asyncio.Task[None]) -> None:
            self._wakes[place.pool].discard(driver.wake)
            ended.set()

        task.add_done_callback(over)
        return task

    async def _forget(self, pool: str, term: int, tasks: dict[str, asyncio.Task[None]]) -> None:
        cells = await self._driving.directory.cells(pool)
        for name in [name for name in tasks if name not in cells or cells[name].any is None]:
            if await self._parts.cells.forget(pool, term, name):
                log.info("pool %s: cell %s is gone", pool, name)
                await end_tasks([tasks.pop(name)])


def _raise_first(tasks: Iterable[asyncio.Task[None]]) -> None:
    """What ended one of them by an error."""
    for task in tasks:
        if task.done():
            task.result()
