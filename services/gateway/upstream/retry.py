"""Calls to the scheduler are repeatable: every command carries its own key, so a repeat finds it.

The channel goes round the replicas, so the next attempt usually meets another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import grpc

from services.common.errors import ERROR_CODE_KEY, StaleFence, TinkermeshError, Unavailable, from_rpc_error

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Retry:
    """Repeats what failed because a replica was away; at most for `total_seconds`."""

    def __init__(self, rpc_seconds: float, total_seconds: float) -> None:
        self._rpc_seconds = rpc_seconds
        self._total_seconds = total_seconds

    async def call(self, attempt: Callable[[float], Awaitable[T]], total_seconds: float | None = None) -> T:
        """``await attempt(timeout)``. Raises the typed error of the last attempt."""
        ends = time.monotonic() + (self._total_seconds if total_seconds is None else total_seconds)
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._once(attempt, ends)
            except (Unavailable, StaleFence) as error:
                if time.monotonic() + pause >= ends:
                    raise Unavailable(f"{error.message}; retry in a moment") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, attempt: Callable[[float], Awaitable[T]], ends: float) -> T:
        timeout = max(0.1, min(self._rpc_seconds, ends - time.monotonic()))
        try:
            return await attempt(timeout)
        except grpc.aio.AioRpcError as error:
            raise _typed(error) from error


def _typed(error: grpc.aio.AioRpcError) -> TinkermeshError:
    """The peer's own error; a transport failure without its text, which names addresses."""
    found = from_rpc_error(error)
    if not isinstance(found, (Unavailable, StaleFence)) or _from_peer(error):
        return found
    log.info("call to the scheduler failed: %s", error.details())
    return Unavailable("the scheduler is away")


def _from_peer(error: grpc.aio.AioRpcError) -> bool:
    metadata = cast("tuple[tuple[str, str], ...]", error.trailing_metadata() or ())
    return any(key == ERROR_CODE_KEY for key, _ in metadata)
