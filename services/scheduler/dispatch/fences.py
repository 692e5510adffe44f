"""The store's fence of a cell whose trainer is given up, raised by the scheduler itself."""

from __future__ import annotations

from pathlib import Path

from services.common.publication_fence import PublicationFence
from services.scheduler.shared_store import in_store

NOBODY = "nobody"


class CellFences:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def close(self, pool: str, cell: str, token: int) -> None:
        """No trainer of the cell publishes anything before the next takeover.

        Raises StaleFence when a newer takeover was here, Unavailable while the store is away.
        """
        await in_store(PublicationFence(self._root, pool, NOBODY, cell).close_at, token)
