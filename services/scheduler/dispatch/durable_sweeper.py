"""Files of durable points that no model starts from any more go."""

from __future__ import annotations

from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.models import ModelReader

ORPHAN_SECONDS = 3600.0
PER_SWEEP = 50


class DurableSweeper:
    """Raises Unavailable when Redis or the store is away; what stays goes with a later sweep."""

    def __init__(
        self, book: DurableBook, models: ModelReader, files: DurableFiles, *, orphan_seconds: float = ORPHAN_SECONDS
    ) -> None:
        self._book = book
        self._models = models
        self._files = files
        self._orphan_seconds = orphan_seconds

    async def drop(self, pool: str) -> int:
        """Deletes superseded versions, and those of closed models."""
        dropped = await self._book.dropped(pool, PER_SWEEP)
        for directory in dropped:
            await self._files.delete(directory)
        await self._book.forget(pool, len(dropped))
        return len(dropped)

    async def drop_orphans(self, pool: str) -> int:
        """Deletes what a capture left that was never settled: old, and nobody's base or running capture."""
        dropped = 0
        running = await self._book.running(pool)
        for model_id in await self._files.models(pool):
            row = await self._models.row(pool, model_id)
            kept = {str(row.base.get("directory", ""))} if row is not None and row.state != "closed" else set()
            for directory in await self._files.versions(pool, model_id, self._orphan_seconds):
                if directory not in kept and not _is_of(running.get(model_id), directory):
                    await self._files.delete(directory)
                    dropped += 1
        return dropped


def _is_of(unit_id: str | None, directory: str) -> bool:
    """Whether a version or residue was written by this unit, whose id is its public name."""
    return unit_id is not None and f"_{unit_id}_" in directory.rpartition("/")[2]
