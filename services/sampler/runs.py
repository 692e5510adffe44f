"""Running samples by request id: a repeat attaches, an orphan runs on for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tinkermesh.v1.sampler_pb2 import SampleChunk, SampleRequest, SampleStreamRequest
from tinkermesh.v1.types_pb2 import SampleResult

from services.common.errors import InvalidInput, KeyConflict, Unavailable
from services.sampler.feed import Feed


class Work(Protocol):
    async def run(self, request: SampleRequest) -> SampleResult: ...

    async def stream(self, request: SampleStreamRequest, tell: Callable[[SampleChunk], None]) -> None: ...


@dataclass(slots=True)
class Run:
    request: SampleRequest | SampleStreamRequest
    task: asyncio.Task[Any]
    feed: Feed
    callers: int = 0
    orphan: asyncio.TimerHandle | None = None


class SampleRuns:
    """`work` is called once per request id that is running or waits for a late caller."""

    def __init__(self, work: Work, orphan_seconds: float) -> None:
        self._work = work
        self._orphan_seconds = orphan_seconds
        self._runs: dict[str, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    async def result(self, request: SampleRequest) -> SampleResult:
        """Raises KeyConflict for another request under a running id, Unavailable when aborted."""
        with self._attached(request.request_id, request) as run:
            result: SampleResult = await self._outcome(request.request_id, run)
            return result

    async def chunks(self, request: SampleStreamRequest) -> AsyncGenerator[SampleChunk, None]:
        """All from the start, whenever it is called. Raises as `result`, after the chunks that came before."""
        name = request.sample.request_id
        with self._attached(name, request) as run:
            async for chunk in run.feed.follow():
                yield chunk
            await self._outcome(name, run)

    def abort(self, request_id: str) -> bool:
        run = self._runs.get(request_id)
        return run is not None and run.task.cancel()

    async def drain(self, seconds: float) -> None:
        """Let running samples finish; what is left then is aborted."""
        tasks = [run.task for run in self._runs.values()]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)

    async def _outcome(self, request_id: str, run: Run) -> Any:
        try:
            return await asyncio.shield(run.task)
        except asyncio.CancelledError as error:
            if run.task.cancelled():
                raise Unavailable(f"request {request_id} was aborted") from error
            raise

    @contextmanager
    def _attached(self, request_id: str, request: SampleRequest | SampleStreamRequest) -> Iterator[Run]:
        run = self._attach(request_id, request)
        try:
            yield run
        finally:
            self._detach(request_id, run)

    def _attach(self, request_id: str, request: SampleRequest | SampleStreamRequest) -> Run:
        if not request_id:
            raise InvalidInput("request_id is empty")
        run = self._runs.get(request_id)
        if run is None:
            run = self._runs[request_id] = self._start(request)
        elif type(run.request) is not type(request) or run.request != request:
            raise KeyConflict(f"request_id {request_id} is running with another body")
        if run.orphan is not None:
            run.orphan.cancel()
            run.orphan = None
        run.callers += 1
        return run

    def _start(self, request: SampleRequest | SampleStreamRequest) -> Run:
        feed = Feed()
        if isinstance(request, SampleRequest):
            task: asyncio.Task[Any] = asyncio.create_task(self._work.run(request))
        else:
            task = asyncio.create_task(self._work.stream(request, feed.tell))
        task.add_done_callback(_seen)
        task.add_done_callback(lambda _: feed.close())
        return Run(request, task, feed)

    def _detach(self, request_id: str, run: Run) -> None:
        run.callers -= 1
        if run.callers:
            return
        if run.task.done():
            self._drop(request_id, run)
            return
        # The caller may be a scheduler that died: its successor asks with the same id.
        loop = asyncio.get_running_loop()
        run.orphan = loop.call_later(self._orphan_seconds, self._drop, request_id, run)

    def _drop(self, request_id: str, run: Run) -> None:
        run.task.cancel()
        if self._runs.get(request_id) is run:
            del self._runs[request_id]


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
