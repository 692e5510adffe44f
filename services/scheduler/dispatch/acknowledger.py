"""Tells the trainer which units are settled, off the path of the next unit.

Should a message be lost, the next leader's takeover repeats it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from services.common.errors import StaleFence, Unavailable
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.dispatch.tasks import end_tasks

log = logging.getLogger(__name__)


class Acknowledger:
    def __init__(self, client: TrainerClient, term: int, incarnation: str) -> None:
        self._client = client
        self._term = term
        self._incarnation = incarnation
        self._waiting: list[str] = []
        self._sender: asyncio.Task[None] | None = None

    def add(self, unit_ids: Iterable[str]) -> None:
        self._waiting.extend(unit_ids)
        if self._waiting and (self._sender is None or self._sender.done()):
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """One message at a time; what gathers meanwhile goes with the next."""
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._client.acknowledge(self._term, self._incarnation, batch)
            except (Unavailable, StaleFence) as error:
                log.warning("%d settled units are not acknowledged: %s", len(batch), error)

    async def close(self) -> None:
        if self._sender is not None:
            await end_tasks([self._sender])
