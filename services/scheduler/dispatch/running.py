"""What runs in a process and must not be cut short when it stops."""

from __future__ import annotations

import asyncio

from services.scheduler.waking import wait_at_most


class Running:
    def __init__(self) -> None:
        self.stopping = False
        self._busy: set[object] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def started(self, what: object) -> None:
        self._busy.add(what)
        self._idle.clear()

    def ended(self, what: object) -> None:
        self._busy.discard(what)
        if not self._busy:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Whether everything has ended within `seconds`."""
        return await wait_at_most(self._idle, seconds)
