"""How soon a settlement reaches its open poll while many other polls wait.

The settlement's moment is when Redis publishes it, seen by a subscription of our own.
"""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from benchmarks.client.model import Model

CHANNELS = "tm:settled:*"
SETTLED_SECONDS = 30.0


class Wakeups:
    def __init__(self, redis_url: str, *, waiting: Model, probe: Model) -> None:
        self._redis = Redis.from_url(redis_url, protocol=2)
        self._waiting, self._probe = waiting, probe
        self._settled: dict[str, float] = {}
        self._listening = asyncio.Event()
        self._tasks: list[asyncio.Task[object]] = []

    async def open(self, count: int, ramp: float) -> None:
        """The waiting model's first command is never sent, so the later ones stay queued."""
        self._tasks.append(asyncio.create_task(self._listen()))
        await self._listening.wait()
        self._waiting.take_seq()
        begin = time.perf_counter()
        for number in range(count):
            request_id = await self._waiting.post_optim_step()
            self._tasks.append(asyncio.create_task(self._waiting.gateway.result(request_id)))
            await asyncio.sleep(max(0.0, begin + ramp * number / count - time.perf_counter()))

    async def measure(self, times: int) -> list[float]:
        """Raises what ended a waiting poll early, ValueError when a settlement's notice was lost."""
        taken = []
        for _ in range(times):
            request_id = await self._probe.post_optim_step()
            answer = await self._probe.gateway.result(request_id)
            taken.append((answer.at - self._settled.pop(request_id)) * 1000.0)
            self._check()
        return taken

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError("a poll that had to stay open was answered")

    async def _listen(self) -> None:
        async with self._redis.pubsub() as subscription:
            await subscription.psubscribe(CHANNELS)
            while True:
                message = await subscription.get_message(timeout=SETTLED_SECONDS)
                if message is None:
                    await subscription.ping()
                elif message["type"] == "psubscribe":
                    self._listening.set()
                elif message["type"] == "pmessage":
                    self._settled |= dict.fromkeys(message["data"].decode().split(), time.perf_counter())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()
