"""Running samples by request id: a repeat attaches, an orphan runs on for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from tinkermesh.v1.sampler_pb2 import SampleRequest
from tinkermesh.v1.types_pb2 import SampleResult

from services.common.errors import InvalidInput, KeyConflict, Unavailable

Work = Callable[[SampleRequest], Coroutine[None, None, SampleResult]]


@dataclass(slots=True)
class Run:
    request: SampleRequest
    task: asyncio.Task[SampleResult]
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
        run = self._attach(request)
        try:
            return await asyncio.shield(run.task)
        except asyncio.CancelledError as error:
            if run.task.cancelled():
                raise Unavailable(f"request {request.request_id} was aborted") from error
            raise
        finally:
            self._detach(request.request_id, run)

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

    def _attach(self, request: SampleRequest) -> Run:
        if not request.request_id:
            raise InvalidInput("request_id is empty")
        run = self._runs.get(request.request_id)
        if run is None:
            task = asyncio.create_task(self._work(request))
            task.add_done_callback(_seen)
            run = self._runs[request.request_id] = Run(request, task)
        elif run.request != request:
            raise KeyConflict(f"request_id {request.request_id} is running with another body")
        if run.orphan is not None:
            run.orphan.cancel()
            run.orphan = None
        run.callers += 1
        return run

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


def _seen(task: asyncio.Future[SampleResult]) -> None:
    if not task.cancelled():
        task.exception()
