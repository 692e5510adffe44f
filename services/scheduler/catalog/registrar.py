"""How runs and checkpoints come into the catalog: before the future of their create or save settles.

A leader that dies between the two is followed by one that settles the same outcome again, so every
registration may be repeated.
"""

from __future__ import annotations

from services.common.tinker_path import TinkerPath
from services.scheduler.artifacts import Artifact
from services.scheduler.ports import ArtifactReader
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, RunFacts
from services.scheduler.store.models import ModelReader


class Registrar:
    """Implements ports.CatalogWriter."""

    def __init__(self, store: CatalogStore, models: ModelReader, artifacts: ArtifactReader) -> None:
        self._store = store
        self._models = models
        self._artifacts = artifacts

    async def model_created(self, pool: str, model_id: str) -> None:
        row = await self._models.row(pool, model_id)
        if row is not None:
            facts = RunFacts(row.base_model, row.layout, row.user_metadata, pool)
            await self._store.add_run(row.tenant, model_id, row.created_ms, facts)

    async def published(self, pool: str, path: TinkerPath, size_bytes: int) -> None:
        artifact = await self._artifacts.stored(path)
        await register(self._store, artifact, pool=pool, size_bytes=size_bytes)


async def register(store: CatalogStore, artifact: Artifact, *, pool: str = "", size_bytes: int = 0) -> None:
    """Enters what lies in the store; what the catalog already knows stays as it is there."""
    meta = artifact.meta
    entry = CheckpointEntry(
        path=artifact.path,
        version=artifact.version,
        created_ms=meta.created_unix_ms,
        size_bytes=size_bytes or artifact.size_bytes,
        expires_ms=meta.expires_unix_ms,
        metadata=meta.user_metadata_json,
        public=False,
    )
    await store.add_checkpoint(meta.tenant_id, entry, RunFacts(meta.base_model, meta.layout, pool=pool))
