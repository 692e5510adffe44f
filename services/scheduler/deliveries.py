"""When small results went to the gateways that waited for them: noted for who looks at a request's timeline.

Many at a time, a moment later, and never in the way of an answer: what is lost with a replica that dies is a
time on a page, nothing a client sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from services.common.errors import Unavailable
from services.common.ids import RequestId, parse_request_id
from services.scheduler.store.requests import RequestReader

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
PER_CALL = 500
REMEMBERED = 20_000


class Deliveries:
    def __init__(self, reader: RequestReader, *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._reader = reader
        self._period = period_seconds
        self._noted: dict[str, float] = {}
        self._wake = asyncio.Event()

    def note(self, request_id: str) -> None:
        """Beyond REMEMBERED in one period they are not kept."""
        if len(self._noted) < REMEMBERED:
            self._noted.setdefault(request_id, asyncio.get_running_loop().time())
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled; costs nothing while nothing is delivered."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._period)
            self._wake.clear()
            noted, self._noted = self._noted, {}
            try:
                await self._write(noted)
            except Unavailable as error:
                log.info("when %d results were delivered is not noted: %s", len(noted), error)

    async def _write(self, noted: dict[str, float]) -> None:
        now = asyncio.get_running_loop().time()
        by_pool: dict[str, list[tuple[RequestId, int]]] = defaultdict(list)
        for request_id, at in noted.items():
            request = parse_request_id(request_id)
            by_pool[request.pool].append((request, round(1000 * (now - at))))
        for pool, deliveries in by_pool.items():
            for first in range(0, len(deliveries), PER_CALL):
                await self._reader.handed(pool, deliveries[first : first + PER_CALL])
