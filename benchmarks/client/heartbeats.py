"""Sessions that only beat, spread evenly over the period as independent clients are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from benchmarks.client.model import Model


class Heartbeats:
    def __init__(self, models: Sequence[Model], period: float) -> None:
        self._models = models
        self._period = period
        self._answered = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        gap = self._period / len(self._models)
        self._tasks = [asyncio.create_task(self._beat(model, n * gap)) for n, model in enumerate(self._models)]

    async def _beat(self, model: Model, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            await model.heartbeat()
            self._answered += 1
            await asyncio.sleep(self._period)

    async def stop(self) -> int:
        """Answered beats. Raises what ended a session's beats early."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return self._answered
