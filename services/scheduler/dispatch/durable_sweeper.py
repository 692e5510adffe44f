"""Files of durable points that no model starts from any more go."""

from __future__ import annotations

from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.models import ModelReader

ORPHAN_SECONDS = 3600.0
PER_SWEEP = 50
MODELS_PER_SWEEP = 500


class DurableSweeper:
    """Raises Unavailable when Redis or the store is away; what stays goes with a later sweep."""

    def __init__(
        self, book: DurableBook, models: ModelReader, files: DurableFiles, *, orphan_seconds: float = ORPHAN_SECONDS
    ) -> None:
        self._book = book
        self._models = models
        self._files = files
        self._orphan_seconds = orphan_seconds
        self._reached: dict[str, str] = {}  # by pool: the last model of the last part

    async def drop(self, pool: str) -> int:
        """Deletes superseded versions, and those of closed models."""
        dropped = await self._book.dropped(pool, PER_SWEEP)
        for directory in dropped:
            await self._files.delete(directory)
        await self._book.forget(pool, len(dropped))
        return len(dropped)

    async def drop_orphans(self, pool: str) -> int:
        """Deletes what a capture left that was never settled: old, and nobody's base or running capture.

        Of a part of the models each time, and then of the next: what Redis is asked does not grow with their number.
        """
        models, self._reached[pool] = await self._files.models(pool, self._reached.get(pool, ""), MODELS_PER_SWEEP)
        orphans = await self._orphans_of(pool, models)
        for directory in orphans:
            await self._files.delete(directory)
        await self._files.delete_empty(pool, models, self._orphan_seconds)
        return len(orphans)

    async def orphans(self, pool: str, parts: int) -> tuple[list[str], bool]:
        """What `drop_orphans` would delete in its next rounds, of so many parts of the models; if that is all."""
        found, reached = list[str](), ""
        for _ in range(parts):
            models, reached = await self._files.models(pool, reached, MODELS_PER_SWEEP)
            found += await self._orphans_of(pool, models)
            if not reached:
                return found, True
        return found, False

    async def _orphans_of(self, pool: str, models: list[str]) -> list[str]:
        """Files are listed before Redis is asked: one that is captured or becomes a base meanwhile is known as such."""
        old = await self._files.versions(pool, models, self._orphan_seconds)
        if not old:
            return []
        running = await self._book.running(pool)
        bases = await self._models.bases(pool, list(old))
        return [
            directory
            for (model_id, directories), base in zip(old.items(), bases, strict=True)
            for directory in directories
            if directory != base and not _is_of(running.get(model_id), directory)
        ]


def _is_of(unit_id: str | None, directory: str) -> bool:
    """Whether a version or residue was written by this unit, whose id is its public name."""
    return unit_id is not None and f"_{unit_id}_" in directory.rpartition("/")[2]
