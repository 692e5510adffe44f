"""All open long polls of this process over one Watch stream.

The hub keeps a table of waits. Whatever the stream's fate, the table is the truth: a new stream
starts by adding every open wait again, and another scheduler replica may serve it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Pending, Unavailable
from services.common.ids import CompletionsWait
from services.gateway.upstream.outbox import Key, Outbox
from services.gateway.upstream.scheduler import SchedulerClient

log = logging.getLogger(__name__)

_EXPLAIN_SECONDS = 1.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


def _pending(reason: str = "") -> pb.WatchEvent:
    return pb.WatchEvent(state=pb.WATCH_STATE_PENDING, queue_state="active", queue_state_reason=reason)


_AWAY = _pending("the scheduler is away; the mesh is recovering and the request is kept")
_DRAINING = _pending("this gateway is restarting")


@dataclass(eq=False, slots=True)
class _Wait:
    """What all polls of one tenant for one request share."""

    key: Key
    event: asyncio.Future[pb.WatchEvent]
    explained: asyncio.Future[pb.WatchEvent] | None = None
    polls: int = 0


class WatchHub:
    """`poll` holds a request id until it is settled; `run` keeps the stream alive."""

    def __init__(self, scheduler: SchedulerClient) -> None:
        self._scheduler = scheduler
        self._waits: dict[Key, _Wait] = {}
        self._tenants_waiting: Counter[str] = Counter()  # by request id
        self._outbox: Outbox | None = None
        self._draining = False

    @property
    def open_waits(self) -> int:
        return len(self._waits)

    @property
    def draining(self) -> bool:
        return self._draining

    async def poll(self, tenant: str, request_id: str, seconds: float) -> pb.WatchEvent:
        """The event that settled the request, or a PENDING one with its queue state after `seconds`."""
        if self._draining:
            return _DRAINING
        with self._held((tenant, request_id)) as wait:
            await asyncio.wait({wait.event}, timeout=seconds)
            return wait.event.result() if wait.event.done() else await self._explain(wait)

    async def reached(self, tenant: str, name: CompletionsWait, seconds: float) -> pb.WatchEvent:
        """The event that says something is behind the cursor, or PENDING after `seconds`."""
        if self._draining:
            return _DRAINING
        with self._held((tenant, str(name))) as wait:
            await asyncio.wait({wait.event}, timeout=seconds)
            return wait.event.result() if wait.event.done() else _pending()

    @contextmanager
    def _held(self, key: Key) -> Iterator[_Wait]:
        wait = self._waits.get(key) or self._add(key)
        wait.polls += 1
        try:
            yield wait
        finally:
            wait.polls -= 1
            if wait.polls == 0:
                self._forget(wait)

    def drain(self) -> None:
        """Answer every open poll as pending, now: the process is about to stop."""
        self._draining = True
        for wait in self._waits.values():
            _finish(wait.event, _DRAINING)

    async def run(self) -> None:
        """Until cancelled: one stream after another, each starting with all open waits."""
        pause = _FIRST_PAUSE
        while True:
            outbox = self._outbox = Outbox(self._waits)
            cause = "it was closed"
            try:
                async for event in self._scheduler.watch(outbox.messages()):
                    pause = _FIRST_PAUSE
                    self._on_event(event)
            except grpc.aio.AioRpcError as error:
                cause = error.code().name
            finally:
                outbox.close()
                self._outbox = None
            log.warning("watch stream to the scheduler ended (%s); opening another", cause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    # ---- the table -----------------------------------------------------------------------

    def _add(self, key: Key) -> _Wait:
        wait = self._waits[key] = _Wait(key, asyncio.get_running_loop().create_future())
        self._tenants_waiting[key[1]] += 1
        if self._outbox is not None:
            self._outbox.add(key)
        return wait

    def _forget(self, wait: _Wait) -> None:
        """Out of the table; off the stream too, unless the scheduler has answered it already."""
        if self._waits.get(wait.key) is not wait:
            return
        del self._waits[wait.key]
        request_id = wait.key[1]
        self._tenants_waiting[request_id] -= 1
        if self._tenants_waiting[request_id]:
            return
        del self._tenants_waiting[request_id]
        if self._outbox is not None and not wait.event.done():
            self._outbox.remove(wait.key)

    def _on_event(self, event: pb.WatchEvent) -> None:
        wait = self._waits.get((event.tenant_id, event.request_id))
        if wait is None:
            return
        if event.state == pb.WATCH_STATE_PENDING:
            if wait.explained is not None:
                _finish(wait.explained, event)
                wait.explained = None
            return
        _finish(wait.event, event)
        self._forget(wait)

    # ---- the end of a poll ---------------------------------------------------------------

    async def _explain(self, wait: _Wait) -> pb.WatchEvent:
        if self._outbox is None:
            return _AWAY
        if wait.explained is None:
            wait.explained = asyncio.get_running_loop().create_future()
            self._outbox.explain(wait.key)
        explained = wait.explained
        await asyncio.wait({wait.event, explained}, timeout=_EXPLAIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        # Both may be there: the settlement is worth more than why it was not.
        done = next((future for future in (wait.event, explained) if future.done()), None)
        return done.result() if done is not None else await self._ask(wait.key)

    async def _ask(self, key: Key) -> pb.WatchEvent:
        """The stream is silent: ask once directly, so that no lost wake-up outlives one poll."""
        tenant, request_id = key
        try:
            result = await self._scheduler.get_result(tenant, request_id, _EXPLAIN_SECONDS)
        except Pending:
            return _pending()
        except Unavailable:
            return _AWAY
        return pb.WatchEvent(request_id=request_id, state=pb.WATCH_STATE_SETTLED, result=result)


def _finish(future: asyncio.Future[pb.WatchEvent], event: pb.WatchEvent) -> None:
    if not future.done():
        future.set_result(event)
