"""What a Watch stream still has to send; one message carries all that gathered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

from tinkermesh.v1 import scheduler_pb2 as pb

K = TypeVar("K")
Key = tuple[str, str]  # tenant id, request id

_ITEMS_PER_MESSAGE = 1024


class Outbox:
    """The scheduler applies a message's additions before its removals, so an id is never in both."""

    def __init__(self, open_waits: Iterable[Key]) -> None:
        self._add: dict[Key, None] = dict.fromkeys(open_waits)
        self._remove: dict[str, None] = {}
        self._explain: dict[Key, None] = {}
        self._wake = asyncio.Event()
        self._closed = False
        if self._add:
            self._wake.set()

    def add(self, key: Key) -> None:
        self._remove.pop(key[1], None)
        self._add[key] = None
        self._wake.set()

    def remove(self, key: Key) -> None:
        """For the last wait of a request id only: the scheduler forgets the id for every tenant."""
        self._add.pop(key, None)
        self._remove[key[1]] = None
        self._wake.set()

    def explain(self, key: Key) -> None:
        self._explain[key] = None
        self._wake.set()

    def close(self) -> None:
        """Its stream is gone: `messages` ends, so that the task that sends them does too."""
        self._closed = True
        self._wake.set()

    async def messages(self) -> AsyncIterator[pb.WatchRequest]:
        while True:
            await self._wake.wait()
            if self._closed:
                return
            yield self._take()

    def _take(self) -> pb.WatchRequest:
        message = pb.WatchRequest(
            add=[_item(key) for key in _first(self._add)],
            remove=_first(self._remove),
            explain=[_item(key) for key in _first(self._explain)],
        )
        if not (self._add or self._remove or self._explain):
            self._wake.clear()
        return message


def _first(pending: dict[K, None]) -> list[K]:
    taken = list(islice(pending, _ITEMS_PER_MESSAGE))
    for key in taken:
        del pending[key]
    return taken


def _item(key: Key) -> pb.WatchItem:
    return pb.WatchItem(tenant_id=key[0], request_id=key[1])
