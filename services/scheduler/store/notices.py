"""The one pub/sub subscription of a process: settlements and wake-ups.

A message can be lost while the connection is away. Whoever depends on one registers
`on_reconnect` and reads again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.connection import OUTAGES, subscriber

log = logging.getLogger(__name__)

SETTLED = keys.settled_channel("")
READY = keys.ready_channel("")
_POLL_SECONDS = 30.0
_BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)

Ready = Callable[[str, str], None]
Settled = Callable[[str, list[str]], None]
Reconnect = Callable[[], None]


class Notices:
    """Callbacks run in the event loop and must not block."""

    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)
        self._ready: list[Ready] = []
        self._settled: list[Settled] = []
        self._reconnect: list[Reconnect] = []
        self.subscribed = asyncio.Event()

    def on_ready(self, callback: Ready) -> None:
        """Called with (pool, train | trainer | sample | lease | requeued)."""
        self._ready.append(callback)

    def on_settled(self, callback: Settled) -> None:
        """Called with (pool, request ids)."""
        self._settled.append(callback)

    def on_reconnect(self, callback: Reconnect) -> None:
        """Called after each (re)subscription: messages before it may have been missed."""
        self._reconnect.append(callback)

    async def run(self) -> None:
        """Until cancelled; an outage of Redis is waited out."""
        failures = 0
        while True:
            try:
                await self._listen()
            except OUTAGES as error:
                log.warning("subscription lost: %s", error)
            failures = 0 if self.subscribed.is_set() else failures + 1
            self.subscribed.clear()
            await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])

    async def _listen(self) -> None:
        async with await subscriber(self._redis) as pubsub:
            await pubsub.psubscribe(f"{SETTLED}*", f"{READY}*")
            while True:
                message = await pubsub.get_message(timeout=_POLL_SECONDS)
                if message is None:
                    await pubsub.ping()
                elif message["type"] == "psubscribe":
                    self._confirm()
                elif message["type"] == "pmessage":
                    self._deliver(message["channel"].decode(), message["data"].decode())

    def _confirm(self) -> None:
        self.subscribed.set()
        for callback in self._reconnect:
            callback()

    def _deliver(self, channel: str, data: str) -> None:
        if channel.startswith(SETTLED):
            for settled in self._settled:
                settled(channel.removeprefix(SETTLED), data.split())
        else:
            for ready in self._ready:
                ready(channel.removeprefix(READY), data)
