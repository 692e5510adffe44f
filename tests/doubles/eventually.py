"""Waiting for something to become true, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
SOON = 30.0


async def eventually(check: Callable[[], Awaitable[T] | T], seconds: float = SOON) -> T:
    """The first true answer of `check`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer  # type: ignore[return-value]
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


def until(check: Callable[[], T], seconds: float = SOON) -> T:
    """The same without a loop: for tests whose client has a thread of its own."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return answer
