"""Calls to the scheduler are repeatable: every command carries its own key, so a repeat finds it.

The channel goes round the replicas, so the next attempt usually meets another one. A replica that
is away fails a call at once; one that hangs (stopped, or its machine gone) only keeps silent, so a
call without an answer is soon tried beside itself, and the first answer counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import grpc

from services.common.errors import ERROR_CODE_KEY, StaleFence, TinkermeshError, Unavailable, from_rpc_error
from services.gateway.tasks import begun

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_ATTEMPTS = 3
_AWAY = (Unavailable, StaleFence)


class Retry:
    """Repeats what failed because a replica was away; at most for `total_seconds`.

    `hedge_seconds`: how long a hedged call may be silent before it is tried beside itself. At most
    `max_hedges` such attempts run at a time, so that a slow mesh is not given twice the work.
    """

    def __init__(
        self, rpc_seconds: float, total_seconds: float, *, hedge_seconds: float = 1.5, max_hedges: int = 32
    ) -> None:
        self._rpc_seconds = rpc_seconds
        self._total_seconds = total_seconds
        self._hedge_seconds = hedge_seconds
        self._max_hedges = max_hedges
        self.hedges = 0

    async def call(
        self,
        attempt: Callable[[float], Awaitable[T]],
        total_seconds: float | None = None,
        *,
        hedged: bool = False,
        busy_seconds: float = 0.0,
    ) -> T:
        """``await attempt(timeout)``. Raises the typed error of the last attempt.

        `hedged`: it may run twice at the same time. `busy_seconds`: how long it may take by its size; so long
        its silence means nothing.
        """
        silence = self._hedge_seconds + busy_seconds
        ends = time.monotonic() + (self._total_seconds if total_seconds is None else total_seconds)
        pause = _FIRST_PAUSE
        while True:
            try:
                return await (self._hedged(attempt, ends, silence) if hedged else self._once(attempt, ends))
            except _AWAY as error:
                if time.monotonic() + pause >= ends:
                    raise Unavailable(f"{error.message}; retry in a moment") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _once(self, attempt: Callable[[float], Awaitable[T]], ends: float) -> T:
        timeout = max(0.1, min(self._rpc_seconds, ends - time.monotonic()))
        try:
            return await attempt(timeout)
        except grpc.aio.AioRpcError as error:
            raise typed(error) from error

    async def _hedged(self, attempt: Callable[[float], Awaitable[T]], ends: float, silence: float) -> T:
        """The first answer or refusal of up to three attempts, each begun when those before it are silent."""
        attempts = [begun(self._once(attempt, ends))]
        try:
            while True:
                patience = silence if len(attempts) < _ATTEMPTS else None
                pending = {task for task in attempts if not task.done()}
                done, _ = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not isinstance(task.exception(), _AWAY):
                        return task.result()
                if done == pending:
                    return done.pop().result()
                if not done:
                    self._add_hedge(attempts, attempt, ends)
        finally:
            for task in attempts:
                task.cancel()

    def _add_hedge(
        self, attempts: list[asyncio.Task[T]], attempt: Callable[[float], Awaitable[T]], ends: float
    ) -> None:
        if self.hedges < self._max_hedges:
            self.hedges += 1
            attempts.append(begun(self._once(attempt, ends)))
            attempts[-1].add_done_callback(self._hedge_ended)

    def _hedge_ended(self, _task: asyncio.Task[T]) -> None:
        self.hedges -= 1


def typed(error: grpc.aio.AioRpcError) -> TinkermeshError:
    """The peer's own error; a transport failure without its text, which names addresses."""
    found = from_rpc_error(error)
    if not isinstance(found, _AWAY) or _from_peer(error):
        return found
    log.info("call to the scheduler failed: %s", error.details())
    return Unavailable("the scheduler is away")


def _from_peer(error: grpc.aio.AioRpcError) -> bool:
    metadata = cast("tuple[tuple[str, str], ...]", error.trailing_metadata() or ())
    return any(key == ERROR_CODE_KEY for key, _ in metadata)
