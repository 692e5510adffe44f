"""Several writers, one reader, little room between them: who writes waits for who reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    def __init__(self, room: int) -> None:
        self._items: deque[T] = deque()
        self._room = room
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._closed = False

    async def put(self, item: T) -> None:
        while len(self._items) >= self._room:
            self._taken.clear()
            await self._taken.wait()
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Nothing more comes; what is in it is read all the same."""
        self._closed = True
        self._changed.set()

    async def items(self) -> AsyncIterator[T]:
        while True:
            while self._items:
                item = self._items.popleft()
                self._taken.set()
                yield item
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
