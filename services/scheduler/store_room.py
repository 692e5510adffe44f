"""How much room the shared store has, looked at beside everything else: a mount that hangs delays nothing."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from services.scheduler import metrics

log = logging.getLogger(__name__)

LOOK_SECONDS = 15.0


class StoreRoom:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def run(self) -> None:
        """Until cancelled; while the store does not answer the last look stands."""
        while True:
            try:
                found = await asyncio.to_thread(os.statvfs, self._root)
            except OSError as error:
                log.debug("the room in the store could not be read: %s", error)
            else:
                metrics.store_free.set(found.f_bavail * found.f_frsize)
                metrics.store_size.set(found.f_blocks * found.f_frsize)
            await asyncio.sleep(LOOK_SECONDS)
