"""The sampler double's streams: a repeat gets everything from the start, whoever is attached last leaves an orphan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import KeyConflict, Unavailable
from tests.doubles.faults import Rule
from tests.doubles.unit_runner import die_if

Told = AsyncIterator[pb.SampleChunk]


@dataclass(slots=True)
class StreamRun:
    request: pb.SampleStreamRequest
    chunks: list[pb.SampleChunk] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    followers: int = 0
    delivered: int = 0  # chunks that a follower has passed on
    ended: bool = False
    task: asyncio.Task[None] | None = None
    orphan: asyncio.TimerHandle | None = None

    async def fill(self, source: Told) -> None:
        async with aclosing(source) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                self.chunks.append(chunk)
                self.notify()

    def notify(self, *, ended: bool = False) -> None:
        self.ended |= ended
        self.changed.set()
        self.changed = asyncio.Event()

    async def follow(self) -> Told:
        """Raises what ended the run, Unavailable when it was aborted."""
        at = 0
        while at < len(self.chunks) or not self.ended:
            if at == len(self.chunks):
                await self.changed.wait()
                continue
            yield self.chunks[at]
            at += 1
            self.delivered = max(self.delivered, at)
            self.notify()
        if self.task is None or self.task.cancelled():
            raise Unavailable(f"request {self.request.sample.request_id} was aborted")
        self.task.result()

    async def until_delivered(self) -> None:
        while self.delivered < len(self.chunks):
            await self.changed.wait()


class StreamRuns:
    """`make` generates the chunks of a request; tasks are in `running` while they do."""

    def __init__(self, running: dict[str, asyncio.Task[object]], orphan_seconds: float) -> None:
        self._running = running
        self._orphan_seconds = orphan_seconds
        self._runs: dict[str, StreamRun] = {}
        self.attached = 0

    async def follow(self, request: pb.SampleStreamRequest, make: Callable[[StreamRun], Told]) -> Told:
        run = self._attach(request, make)
        try:
            async with aclosing(run.follow()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    yield chunk
        finally:
            self._detach(run)

    def _attach(self, request: pb.SampleStreamRequest, make: Callable[[StreamRun], Told]) -> StreamRun:
        name = request.sample.request_id
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = StreamRun(request)
            run.task = asyncio.create_task(run.fill(make(run)))
            self._running[name] = run.task  # type: ignore[assignment]
            run.task.add_done_callback(lambda _: self._running.pop(name, None))
            run.task.add_done_callback(lambda task: _ended(task, run))
        elif run.request != request:
            raise KeyConflict(f"request_id {name} is running with another body")
        else:
            self.attached += 1
        if run.orphan is not None:
            run.orphan.cancel()
        run.followers += 1
        return run

    def _detach(self, run: StreamRun) -> None:
        run.followers -= 1
        if not run.followers:
            seconds = 0.0 if run.task is None or run.task.done() else self._orphan_seconds
            run.orphan = asyncio.get_running_loop().call_later(seconds, self._drop, run)

    def _drop(self, run: StreamRun) -> None:
        if run.task is not None:
            run.task.cancel()
        if self._runs.get(run.request.sample.request_id) is run:
            del self._runs[run.request.sample.request_id]


def _ended(task: asyncio.Task[None], run: StreamRun) -> None:
    if not task.cancelled():
        task.exception()  # seen, also when nobody follows
    run.notify(ended=True)


async def token_faults(
    due: list[Rule], told: int, delivered: Callable[[], Awaitable[None]], hold: Callable[[Rule], Awaitable[None]]
) -> bool:
    """Before token number `told` of a stream; False when it ends here, as if it were whole.

    Whoever follows has got all tokens before it when something happens.
    """
    for rule in due:
        if rule.action == "delay_token":
            await asyncio.sleep(rule.seconds)
        if rule.tokens != told or not rule.action.endswith("_token"):
            continue
        if rule.action != "delay_token":
            await delivered()
        if rule.action == "hold_token":
            await hold(rule)
        if rule.action == "fail_token":
            raise Unavailable(f"injected failure after {told} tokens")
        if rule.action == "cut_token":
            return False
        if rule.action == "die_token":
            await asyncio.sleep(rule.seconds)  # gRPC drops what a caller has not read yet when the connection breaks
            die_if([rule], "die_token")
    return True
