"""One thread owns the engine: between steps it runs the jobs other threads hand it."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from services.sampler.ports import EngineDead

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[], None]


class Output(NamedTuple):
    """What a step has made of one sequence; of one that is told as it comes there are several."""

    sequence_id: str
    value: object
    finished: bool


Receiver = Callable[[Output], None]


class Steps(Protocol):
    """What the thread drives; vLLM's LLMEngine behind a few lines, or a double."""

    def unfinished(self) -> bool: ...

    def step(self) -> Sequence[Output]:
        """One engine step."""
        ...

    def abort(self, sequence_id: str) -> None: ...

    def close(self) -> None: ...


class EngineDriver:
    """`build` makes the engine inside the thread. All coroutines belong to one event loop."""

    def __init__(self, build: Callable[[], Steps], stall_seconds: float) -> None:
        self._build = build
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._pending: dict[str, Receiver] = {}  # each is called in the loop
        self._streams: set[asyncio.Queue[Output | EngineDead]] = set()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._death: asyncio.Future[EngineDead] = self._loop.create_future()
        self._progress = time.monotonic()
        self._busy = False
        self.steps: Steps

    async def start(self) -> None:
        """Raises what building the engine raised."""
        self._thread.start()
        await asyncio.shield(self._started)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` between two steps; raises what it raises, or EngineDead."""
        future: asyncio.Future[T] = self._loop.create_future()

        def job() -> None:
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - delivered to the caller
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._loop.call_soon_threadsafe(_set, future, value)

        return await self._until_dead(future, job)

    async def run(self, sequence_id: str, submit: Callable[[], None]) -> object:
        """Submit a sequence and wait for its output; cancelling aborts it in the engine."""
        future: asyncio.Future[object] = self._loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            try:
                submit()
            except Exception as error:  # noqa: BLE001 - delivered to the caller
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._pending[sequence_id] = lambda output: _set(future, output.value)

        try:
            return await self._until_dead(future, job)
        except asyncio.CancelledError:
            future.cancel()  # a job that waits for its turn then does nothing
            self._jobs.put(lambda: self._abort(sequence_id))
            raise

    async def stream(self, sequence_id: str, submit: Callable[[], None]) -> AsyncGenerator[object, None]:
        """Submit a sequence and tell its outputs as they come; closing aborts it in the engine."""
        outputs: asyncio.Queue[Output | EngineDead] = asyncio.Queue()

        def begin() -> None:
            submit()
            self._pending[sequence_id] = outputs.put_nowait

        finished = False
        self._streams.add(outputs)
        try:
            await self.call(begin)
            while not finished:
                output = await outputs.get()
                if isinstance(output, EngineDead):
                    raise EngineDead(output.message)
                finished = output.finished
                yield output.value
        finally:
            self._streams.discard(outputs)
            if not finished:
                self._jobs.put(lambda: self._abort(sequence_id))

    async def wait_dead(self) -> EngineDead:
        """Returns the cause of death; also finds out about an engine that stopped stepping."""
        while not self._death.done():
            await asyncio.wait([self._death], timeout=1.0)
            idle = time.monotonic() - self._progress
            if self._busy and idle > self._stall_seconds:
                self._die(EngineDead(f"stage engine step: no step for {idle:.0f} s although there is work"))
        return self._death.result()

    async def stop(self, timeout_seconds: float) -> bool:
        """Ends open calls too. False when the thread did not end in time (it is a daemon)."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, timeout_seconds)
        self._die(EngineDead("the engine was stopped"))
        return not self._thread.is_alive()

    async def _until_dead(self, future: asyncio.Future[T], job: Job) -> T:
        if self._death.done():
            raise EngineDead(self._death.result().message)
        self._jobs.put(job)
        waiters: list[asyncio.Future[Any]] = [future, self._death]
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise EngineDead(self._death.result().message)
        return future.result()

    # ---- in the engine's thread ---------------------------------------------------------

    def _run(self) -> None:
        try:
            self.steps = self._build()
        except Exception as error:  # noqa: BLE001 - delivered to start()
            self._loop.call_soon_threadsafe(_fail, self._started, error)
            return
        self._loop.call_soon_threadsafe(_set, self._started, None)
        try:
            while self._run_jobs():
                self._deliver(self.steps.step())
            self.steps.close()
        except Exception as error:  # noqa: BLE001 - the thread's boundary: open calls must hear of it
            log.exception("the engine died")
            self._loop.call_soon_threadsafe(self._die, EngineDead(f"stage engine step: the engine died: {error}"))

    def _run_jobs(self) -> bool:
        """Run what is queued, waiting only while there is nothing to step; False = stop."""
        while True:
            self._busy = self.steps.unfinished()
            self._progress = time.monotonic()
            try:
                job = self._jobs.get(block=not self._busy)
            except queue.Empty:
                return True
            if job is None:
                return False
            self._busy = True
            job()

    def _deliver(self, outputs: Sequence[Output]) -> None:
        """All of a step at once: waking the loop costs more than what it then does."""
        found: list[tuple[Receiver, Output]] = []
        for output in outputs:
            receiver = self._pending.get(output.sequence_id)
            if receiver is not None:
                found.append((receiver, output))
            if output.finished:
                self._pending.pop(output.sequence_id, None)
        if found:
            self._loop.call_soon_threadsafe(_hand_out, found)

    def _abort(self, sequence_id: str) -> None:
        if self._pending.pop(sequence_id, None) is not None:
            self.steps.abort(sequence_id)

    # ---- in the event loop --------------------------------------------------------------

    def _die(self, cause: EngineDead) -> None:
        if not self._death.done():
            self._death.set_result(cause)
            for outputs in self._streams:
                outputs.put_nowait(cause)


def _hand_out(found: Sequence[tuple[Receiver, Output]]) -> None:
    for receiver, output in found:
        receiver(output)


def _set(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
