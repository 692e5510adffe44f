"""What an owner does with checkpoints: list, publish, limit their time, delete."""

from __future__ import annotations

import logging

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import MissingResource, Unavailable
from services.common.tinker_path import TinkerPath, parse_checkpoint_id, parse_tinker_path
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.registrar import register
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, Doomed

log = logging.getLogger(__name__)


class Checkpoints:
    def __init__(self, store: CatalogStore, artifacts: Artifacts) -> None:
        self._store = store
        self._artifacts = artifacts

    async def page(self, tenant_id: str, run_id: str, offset: int, limit: int) -> tuple[int, list[pb.CheckpointInfo]]:
        """Of one run, or of all with `run_id` "": (total, the newest from `offset` on)."""
        total, entries = await self._store.checkpoints(tenant_id, run_id, offset, limit)
        return total, [checkpoint_info(entry) for entry in entries]

    async def set_public(self, path: str, tenant_id: str, public: bool) -> None:
        """Raises InvalidInput, MissingResource, Forbidden."""
        await self._store.set_public(tenant_id, await self._owned(parse_tinker_path(path), tenant_id), public)

    async def set_ttl(self, path: str, tenant_id: str, ttl_seconds: int | None) -> None:
        """From now on; None = for ever. Raises InvalidInput, MissingResource, Forbidden."""
        parsed = await self._owned(parse_tinker_path(path), tenant_id)
        await self._store.set_ttl(tenant_id, parsed, None if ttl_seconds is None else ttl_seconds * 1000)

    async def delete(self, run_id: str, checkpoint_id: str, tenant_id: str) -> None:
        """Gone for every reader when it returns. Raises InvalidInput, MissingResource, Forbidden."""
        path = await self._owned(parse_checkpoint_id(run_id, checkpoint_id), tenant_id)
        version = await self._store.doom(tenant_id, path)
        if not version:
            raise MissingResource(f"{path} does not exist")
        try:
            await self._artifacts.remove(path, version)
            await self._store.forget(tenant_id, Doomed(path, version))
        except (MissingResource, Unavailable) as error:
            log.warning("%s is deleted, its files go later: %s", path, error)  # the sweep goes on with it

    async def _owned(self, path: TinkerPath, tenant_id: str) -> TinkerPath:
        """`path` once it is an entry of this tenant's catalog. Raises InvalidInput, MissingResource, Forbidden."""
        entry = await self._store.checkpoint(tenant_id, path)
        if entry is None:
            await register(self._store, await self._artifacts.owned(path, tenant_id))
        elif not entry.alive():
            raise MissingResource(f"{path} expired or was deleted")
        return path


def checkpoint_info(entry: CheckpointEntry) -> pb.CheckpointInfo:
    return pb.CheckpointInfo(
        checkpoint_id=entry.path.checkpoint_id,
        path=str(entry.path),
        created_unix_ms=entry.created_ms,
        size_bytes=entry.size_bytes,
        user_metadata_json=entry.metadata,
        expires_unix_ms=entry.expires_ms,
        public=entry.public,
    )
