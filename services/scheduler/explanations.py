"""Why a request is still pending: the queue states a long poll answers with."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import TinkermeshError, UnknownId
from services.common.ids import RequestId, parse_request_id
from services.scheduler.results import Results
from services.scheduler.store.requests import Head
from services.scheduler.watch_events import event, final_event

log = logging.getLogger(__name__)

AT_ONCE = 32
ACTIVE = "active"
PAUSED_CAPACITY = "paused_capacity"


class Explainer(Protocol):
    async def explain(self, request: RequestId, head: Head) -> tuple[str, str]:
        """(queue state, reason) of a pending request."""
        ...


class Listener(Protocol):
    def emit(self, event: pb.WatchEvent) -> None: ...


class Explanations:
    """Answers questions a few at a time, beside the settlements that must not wait for them."""

    def __init__(self, results: Results, explainer: Explainer) -> None:
        self._results = results
        self._explainer = explainer
        self._asked: deque[tuple[Listener, str, str]] = deque()
        self._wake = asyncio.Event()

    def ask(self, listener: Listener, tenant_id: str, request_id: str) -> None:
        self._asked.append((listener, tenant_id, request_id))
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._asked:
                asked = [self._asked.popleft() for _ in range(min(AT_ONCE, len(self._asked)))]
                await asyncio.gather(*(self._explain(*item) for item in asked))

    async def _explain(self, listener: Listener, tenant_id: str, request_id: str) -> None:
        try:
            answer = await self._explanation(tenant_id, request_id)
        except UnknownId:
            answer = event(request_id, tenant_id, pb.WATCH_STATE_UNKNOWN)
        except TinkermeshError as error:
            log.warning("request %s cannot be explained: %s", request_id, error)
            answer = _pending(request_id, tenant_id, PAUSED_CAPACITY, "the mesh is recovering")
        listener.emit(answer)

    async def _explanation(self, tenant_id: str, request_id: str) -> pb.WatchEvent:
        request = parse_request_id(request_id)
        head, result = (await self._results.answers([request]))[0]
        final = final_event(request_id, tenant_id, head, result)
        if final is not None or head is None:
            return final or event(request_id, tenant_id, pb.WATCH_STATE_UNKNOWN)
        state, reason = await self._explainer.explain(request, head)
        return _pending(request_id, tenant_id, state, reason)


def _pending(request_id: str, tenant_id: str, state: str, reason: str) -> pb.WatchEvent:
    answer = event(request_id, tenant_id, pb.WATCH_STATE_PENDING)
    answer.queue_state, answer.queue_state_reason = state, reason
    return answer
