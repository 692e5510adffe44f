"""A value remembered for a moment; concurrent questions share one read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Briefly(Generic[T]):
    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._held: tuple[float, T] | None = None
        self._changes = 0

    async def get(self) -> T:
        """Raises what `read` raises; a failure is not remembered."""
        if (held := self._fresh()) is not None:
            return held[1]
        async with self._lock:
            if (held := self._fresh()) is not None:
                return held[1]
            changes = self._changes
            value = await self._read()
            if changes == self._changes:
                self._held = (asyncio.get_running_loop().time(), value)
            return value

    def forget(self) -> None:
        """The value has changed; what is being read now may be the old one, so it is not kept either."""
        self._held = None
        self._changes += 1

    def _fresh(self) -> tuple[float, T] | None:
        held = self._held
        if held is None or asyncio.get_running_loop().time() - held[0] > self._seconds:
            return None
        return held
