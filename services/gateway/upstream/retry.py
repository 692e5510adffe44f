"""Calls to the scheduler are repeatable: every command carries its own key, so a repeat finds it.

The channel goes round the replicas, so the next attempt usually meets another one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from services.common.errors import StaleFence, Unavailable, from_rpc_error

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Retry:
    """Repeats what failed because a replica was away; at most for `total_seconds`."""

    def __init__(self, rpc_seconds: float, total_seconds: float) -> None:
        self._rpc_seconds = rpc_seconds
        self._total_seconds = total_seconds

    async def call(self, attempt: Callable[[float], Awaitable[T]]) -> T:
        """``await attempt(timeout)``. Raises the typed error of the last attempt."""
        ends = time.monotonic() + self._total_seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._once(attempt, ends)
            except (Unavailable, StaleFence) as error:
                if time.monotonic() + pause >= ends:
                    raise Unavailable(f"the scheduler cannot be reached, retry later: {error.message}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, attempt: Callable[[float], Awaitable[T]], ends: float) -> T:
        timeout = max(0.1, min(self._rpc_seconds, ends - time.monotonic()))
        try:
            return await attempt(timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
