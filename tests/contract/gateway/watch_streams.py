"""The doubled scheduler's Watch: open streams that hear when a command settles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.ids import parse_completions_wait
from tests.contract.gateway.settled_samples import SettledSamples
from tests.contract.gateway.submitted import Submitted

INLINE_BYTES = 32 * 1024


@dataclass(eq=False)
class _Watcher:
    events: asyncio.Queue[pb.WatchEvent] = field(default_factory=asyncio.Queue)
    open: set[tuple[str, str]] = field(default_factory=set)


class WatchStreams:
    """`requests`: what there is to settle, by request id."""

    def __init__(self, requests: Mapping[str, Submitted]) -> None:
        self.silent = False  # a stream that says nothing, as after a lost wake-up
        self.queue_state = ("active", "")
        self.settled = SettledSamples(requests)
        self._requests = requests
        self._watchers: set[_Watcher] = set()

    @property
    def count(self) -> int:
        return len(self._watchers)

    @property
    def open_polls(self) -> int:
        return sum(len(watcher.open) for watcher in self._watchers)

    async def watch(self, request_iterator: Any) -> AsyncIterator[pb.WatchEvent]:
        watcher = _Watcher()
        self._watchers.add(watcher)
        reading = asyncio.create_task(self._read(watcher, request_iterator))
        try:
            while True:
                yield await watcher.events.get()
        finally:
            reading.cancel()
            self._watchers.discard(watcher)

    async def _read(self, watcher: _Watcher, requests: Any) -> None:
        async for request in requests:
            if self.silent:
                continue
            for item in request.add:
                watcher.open.add((item.tenant_id, item.request_id))
                self._answer(watcher, item.tenant_id, item.request_id)
            for request_id in request.remove:
                watcher.open = {key for key in watcher.open if key[1] != request_id}
            for item in request.explain:
                state, reason = self.queue_state
                await watcher.events.put(
                    pb.WatchEvent(
                        request_id=item.request_id,
                        tenant_id=item.tenant_id,
                        state=pb.WATCH_STATE_PENDING,
                        queue_state=state,
                        queue_state_reason=reason,
                    )
                )

    def tell(self, one: Submitted) -> None:
        for watcher in self._watchers:
            for tenant, request_id in list(watcher.open):
                if request_id == one.reply.request_id or request_id.startswith("@"):
                    self._answer(watcher, tenant, request_id)

    def _answer(self, watcher: _Watcher, tenant: str, request_id: str) -> None:
        event = pb.WatchEvent(request_id=request_id, tenant_id=tenant)
        one = self._requests.get(request_id)
        if request_id.startswith("@"):
            if self.settled.waits(parse_completions_wait(request_id)):
                return
            event.state = pb.WATCH_STATE_SETTLED
        elif one is None:
            event.state = pb.WATCH_STATE_UNKNOWN
        elif one.request.tenant_id != tenant:
            event.state = pb.WATCH_STATE_FOREIGN
        elif one.result is None:
            return
        else:
            event.state = pb.WATCH_STATE_SETTLED
            event.result_bytes = one.result.ByteSize()
            if event.result_bytes <= INLINE_BYTES:
                event.result.CopyFrom(one.result)
        watcher.open.discard((tenant, request_id))
        watcher.events.put_nowait(event)
