"""Starts children stage by stage, keeps them alive, stops them in the design's order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

from services.common.errors import Unavailable
from services.local.child import Child, State, describe_exit
from services.local.spec import ChildSpec

BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
GIVE_UP_ENDS = 6
GIVE_UP_WINDOW_SECONDS = 60.0


class ChildFailed(Unavailable):
    """A child did not come up, or ended again and again; `exit_code` is what the mesh ends with."""

    def __init__(self, child: Child, message: str) -> None:
        super().__init__(message)
        self.child = child
        code = child.process.returncode if child.process is not None else None
        self.exit_code = 1 if not code else (code if 0 < code < 126 else 128 - code if code < 0 else 1)


Say = Callable[[str], None]
Ready = Callable[[Child], None]


class Supervisor:
    """`say` hears of ends and restarts, `ready` of each child as it first comes up."""

    def __init__(self, specs: Sequence[ChildSpec], say: Say = lambda _: None, ready: Ready = lambda _: None) -> None:
        self.children = [Child(spec) for spec in specs]
        self.failure: ChildFailed | None = None
        self._say = say
        self._ready = ready
        self._watchers: list[asyncio.Task[None]] = []
        self._failed = asyncio.Event()

    def child(self, name: str) -> Child:
        return next(child for child in self.children if child.spec.name == name)

    async def start(self) -> None:
        """Raises ChildFailed; what already runs is then the caller's to `stop`."""
        ordered = sorted(self.children, key=lambda child: child.spec.stage)
        for _, stage in groupby(ordered, key=lambda child: child.spec.stage):
            await self._start_stage(list(stage))

    async def _start_stage(self, stage: list[Child]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for child in stage:
                    group.create_task(self._bring_up(child))
        except* ChildFailed as failures:
            first = _leaves(failures)[0]
            self._fail(first)
            raise first from None
        self._watchers += [self._watcher(child) for child in stage]

    def _watcher(self, child: Child) -> asyncio.Task[None]:
        task = asyncio.create_task(self._watch(child))
        task.add_done_callback(lambda done: self._watched(child, done))
        return task

    def _watched(self, child: Child, watcher: asyncio.Task[None]) -> None:
        """A child nobody watches any more would stay away without a word (FAIL-12)."""
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            child.state = State.FAILED
            self._fail(ChildFailed(child, f"{child.spec.name} cannot be watched any more: {error!r}"))

    async def _bring_up(self, child: Child) -> None:
        try:
            await child.start()
            await child.wait_ready()
        except (Unavailable, OSError) as error:
            child.state = State.FAILED
            raise ChildFailed(child, _cause(child, error, "started")) from error
        self._ready(child)

    async def _watch(self, child: Child) -> None:
        """Restarts the child whenever it ends; gives the mesh up when that does not help."""
        ends: deque[float] = deque(maxlen=GIVE_UP_ENDS)
        while True:
            code = await child.wait_ended()
            child.state = State.RESTARTING
            ends.append(time.monotonic())
            if len(ends) == GIVE_UP_ENDS and ends[-1] - ends[0] < GIVE_UP_WINDOW_SECONDS:
                child.state = State.FAILED
                self._fail(ChildFailed(child, f"{child.spec.name} ended {GIVE_UP_ENDS} times within a minute"))
                return
            recent = sum(end > ends[-1] - GIVE_UP_WINDOW_SECONDS for end in ends)
            pause = BACKOFF_SECONDS[min(recent, len(BACKOFF_SECONDS)) - 1]
            self._say(f"{child.spec.name} ended with {describe_exit(code)}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            try:
                await self._restart(child)
            except OSError as error:
                child.state = State.FAILED
                self._fail(ChildFailed(child, _cause(child, error, "started again")))
                return

    async def _restart(self, child: Child) -> None:
        """Raises OSError when there can be no process; one that is not ready in time is killed."""
        child.restarts += 1
        await child.start()
        try:
            await child.wait_ready()
        except Unavailable as error:
            self._say(error.message)
            child.kill()  # the next turn of the watch sees the end
        else:
            self._say(f"{child.spec.name} is ready again")

    def _fail(self, failure: ChildFailed) -> None:
        self.failure = self.failure or failure
        self._failed.set()

    async def wait_failed(self) -> ChildFailed:
        """Returns when the mesh cannot go on."""
        await self._failed.wait()
        if self.failure is None:
            raise Unavailable("supervisor failed without a cause")
        return self.failure

    async def stop(self) -> None:
        """Every child, whatever happens to one of them."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        ordered = sorted(self.children, key=lambda child: child.spec.stop_rank)
        for _, rank in groupby(ordered, key=lambda child: child.spec.stop_rank):
            await asyncio.gather(*(self._stop(child) for child in rank))

    async def _stop(self, child: Child) -> None:
        try:
            await child.stop()
        except Unavailable as error:
            self._say(error.message)


def _cause(child: Child, error: Unavailable | OSError, what: str) -> str:
    return error.message if isinstance(error, Unavailable) else f"{child.spec.name} cannot be {what}: {error}"


def _leaves(group: BaseExceptionGroup[ChildFailed]) -> list[ChildFailed]:
    found: list[ChildFailed] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
