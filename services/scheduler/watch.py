"""Waiting for settlements: one subscription per process, one check loop for all streams.

A waiter is registered before its request is read, and a settlement's message names the request,
so nothing is missed while the subscription lives. After a reconnection everything open is read
again at once; besides, each open wait is read again every few seconds, in one pipeline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Unavailable, UnknownId
from services.common.ids import RequestId, parse_request_id
from services.scheduler.explanations import Explanations
from services.scheduler.results import Results
from services.scheduler.sampling.completions import Completions
from services.scheduler.store.notices import Notices
from services.scheduler.store.requests import Head
from services.scheduler.watch_events import final_event

log = logging.getLogger(__name__)

REREAD_SECONDS = 10.0
SWEEP_SECONDS = 1.0
CHUNK = 500

COMPLETIONS = "@"  # begins the name of a wait for completions, and the word that announces some

Waiter = tuple["WatchStream", str]  # with the tenant it waits for


class WatchStream:
    """The events of one gateway's stream; unbounded, but each added id is answered once."""

    def __init__(self) -> None:
        self._events: deque[pb.WatchEvent] = deque()
        self._wake = asyncio.Event()
        self._ended = False

    def emit(self, event: pb.WatchEvent) -> None:
        self._events.append(event)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def next(self) -> pb.WatchEvent | None:
        """None once the stream has ended."""
        while not self._events:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()


class WatchHub:
    """All open waits of this process."""

    def __init__(
        self,
        results: Results,
        completions: Completions,
        explanations: Explanations,
        notices: Notices,
        handed: Callable[[str], None],
    ) -> None:
        """`handed`: told of each request whose small result went to a gateway."""
        self._results = results
        self._completions = completions
        self._explanations = explanations
        self._handed = handed
        self._streams: set[WatchStream] = set()
        self._waiting: dict[str, dict[Waiter, None]] = {}
        self._followed: dict[str, set[str]] = {}  # by the word that announces them: waits for completions
        self._read_at: dict[str, float] = {}  # oldest read first
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        notices.on_settled(self._settled)
        notices.on_reconnect(self._read_everything)

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def open_waits(self) -> int:
        return len(self._waiting)

    def open(self) -> WatchStream:
        stream = WatchStream()
        self._streams.add(stream)
        return stream

    def close(self, stream: WatchStream) -> None:
        self._streams.discard(stream)
        for request_id in [r for r, waiters in self._waiting.items() if any(w[0] is stream for w in waiters)]:
            self._drop(request_id, [w for w in self._waiting[request_id] if w[0] is stream])
        stream.end()

    def end_all(self) -> None:
        for stream in list(self._streams):
            stream.end()

    def handle(self, stream: WatchStream, request: pb.WatchRequest) -> None:
        for item in request.add:
            self._waiting.setdefault(item.request_id, {})[(stream, item.tenant_id)] = None
            if item.request_id.startswith(COMPLETIONS):
                self._followed.setdefault(_word(item.request_id), set()).add(item.request_id)
            self._mark_due(item.request_id)
        for request_id in request.remove:
            self._drop(request_id, [w for w in self._waiting.get(request_id, {}) if w[0] is stream])
        for item in request.explain:
            self._explanations.ask(stream, item.tenant_id, item.request_id)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._check_loop())
            group.create_task(self._explanations.run())
            group.create_task(self._sweep_loop())

    # -- settlements ---------------------------------------------------------------------

    def _settled(self, _pool: str, request_ids: list[str]) -> None:
        for word in request_ids:
            if word in self._waiting:
                self._mark_due(word)
            for name in self._followed.get(word, ()):
                self._mark_due(name)

    def _read_everything(self) -> None:
        for request_id in self._waiting:
            self._mark_due(request_id)

    def _mark_due(self, request_id: str) -> None:
        self._due[request_id] = None
        self._wake.set()

    def _drop(self, request_id: str, waiters: Iterable[Waiter]) -> None:
        held = self._waiting.get(request_id)
        if held is None:
            return
        for waiter in waiters:
            held.pop(waiter, None)
        if not held:
            del self._waiting[request_id]
            self._read_at.pop(request_id, None)
            if request_id.startswith(COMPLETIONS):
                self._unfollow(request_id)

    def _unfollow(self, name: str) -> None:
        names = self._followed.get(_word(name), set())
        names.discard(name)
        if not names:
            self._followed.pop(_word(name), None)

    async def _check_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                chunk = list(islice(self._due, CHUNK))
                for request_id in chunk:
                    del self._due[request_id]
                if not await self._check_safely(chunk):
                    await asyncio.sleep(SWEEP_SECONDS / 2)

    async def _check_safely(self, chunk: list[str]) -> bool:
        try:
            await self._check(chunk)
        except Unavailable as error:
            log.warning("%d open waits cannot be read: %s", len(chunk), error)
            self._due.update(dict.fromkeys(chunk))
            return False
        return True

    async def _check(self, names: list[str]) -> None:
        waits = [name for name in names if name.startswith(COMPLETIONS)]
        parsed = self._parse(name for name in names if not name.startswith(COMPLETIONS))
        answers, heads = await asyncio.gather(self._results.answers(parsed), self._completions.heads(waits))
        now = asyncio.get_running_loop().time()
        for request, (head, result) in zip(parsed, answers, strict=True):
            self._answer(str(request), head, result, now)
        for name in waits:
            self._answer(name, heads.get(name), None, now)

    def _parse(self, request_ids: Iterable[str]) -> list[RequestId]:
        parsed = []
        for request_id in request_ids:
            try:
                parsed.append(parse_request_id(request_id))
            except UnknownId:
                self._answer(request_id, None, None, 0.0)
        return parsed

    def _answer(self, request_id: str, head: Head | None, result: types.Result | None, now: float) -> None:
        answered = []
        for stream, tenant_id in self._waiting.get(request_id, {}):
            event = final_event(request_id, tenant_id, head, result)
            if event is not None:
                stream.emit(event)
                answered.append((stream, tenant_id))
                if event.HasField("result"):
                    self._handed(request_id)
        self._drop(request_id, answered)
        if request_id in self._waiting:
            self._read_at.pop(request_id, None)
            self._read_at[request_id] = now

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            before = asyncio.get_running_loop().time() - REREAD_SECONDS
            for request_id, read_at in self._read_at.items():
                if read_at > before:
                    break
                self._mark_due(request_id)


def _word(name: str) -> str:
    """``@<sampling session>:<clone>`` of ``@<sampling session>:<clone>><cursor>``."""
    return name.rpartition(">")[0]
