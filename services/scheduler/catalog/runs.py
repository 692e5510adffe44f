"""Training runs: a model as it is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Forbidden, MissingResource, UnknownId
from services.common.ids import parse_model_id
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.checkpoints import checkpoint_info
from services.scheduler.catalog.registrar import register
from services.scheduler.ports import ModelBook
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, RunEntry


class TrainingRuns:
    def __init__(self, store: CatalogStore, models: ModelBook, artifacts: Artifacts) -> None:
        self._store = store
        self._models = models
        self._artifacts = artifacts

    async def page(self, tenant_id: str, project: str, offset: int, limit: int) -> tuple[int, list[pb.TrainingRun]]:
        """(total, the newest runs from `offset` on)."""
        total, entries = await self._store.runs(tenant_id, project, offset, limit)
        return total, await self._described(tenant_id, entries)

    async def get(self, run_id: str, tenant_id: str) -> pb.TrainingRun:
        """Raises MissingResource, Forbidden."""
        check_run_id(run_id)
        entry = await self._store.run(tenant_id, run_id)
        if entry is not None:
            return (await self._described(tenant_id, [entry]))[0]
        model = await self._model(run_id, tenant_id)
        await self._find_in_store(run_id, tenant_id)
        entry = await self._store.run(tenant_id, run_id)
        if entry is not None:
            return (await self._described(tenant_id, [entry]))[0]
        if model is None:
            raise MissingResource(f"training_run_id {run_id} is not known and left no checkpoint")
        return _of_model(model, tenant_id)

    async def check_owner(self, run_id: str, tenant_id: str) -> None:
        """Raises MissingResource, Forbidden."""
        if await self._store.run(tenant_id, run_id) is None:
            await self.get(run_id, tenant_id)

    async def _model(self, run_id: str, tenant_id: str) -> pb.ModelInfo | None:
        """A model that is still being made is no run yet, but its owner may ask. Raises Forbidden."""
        try:
            return await self._models.describe(run_id, tenant_id)
        except UnknownId:
            return None

    async def _find_in_store(self, run_id: str, tenant_id: str) -> None:
        """Enters what an older version of the mesh left behind. Raises Forbidden when it is another's."""
        for artifact in await self._artifacts.of_run(run_id):
            if artifact.meta.tenant_id != tenant_id:
                raise Forbidden(f"training_run_id {run_id} belongs to another tenant")
            await register(self._store, artifact)

    async def _described(self, tenant_id: str, entries: Sequence[RunEntry]) -> list[pb.TrainingRun]:
        asked = await self._store.last_requests(entries) if entries else []
        return [_of_entry(entry, tenant_id, last) for entry, last in zip(entries, asked, strict=True)]


def check_run_id(run_id: str) -> None:
    """Raises MissingResource."""
    try:
        parse_model_id(run_id)
    except UnknownId as error:
        raise MissingResource(f"training_run_id: {error.message}") from error


def _of_entry(entry: RunEntry, tenant_id: str, last_request_ms: int) -> pb.TrainingRun:
    run = pb.TrainingRun(
        training_run_id=entry.run_id,
        tenant_id=tenant_id,
        base_model=entry.facts.base_model,
        layout=entry.facts.layout,
        user_metadata_json=entry.facts.metadata,
        last_checkpoint=_info(entry.last_checkpoint),
        last_sampler_checkpoint=_info(entry.last_sampler_checkpoint),
    )
    known = [last_request_ms, entry.created_ms, run.last_checkpoint.created_unix_ms]
    run.last_request_unix_ms = max(*known, run.last_sampler_checkpoint.created_unix_ms)
    return run


def _info(entry: CheckpointEntry | None) -> pb.CheckpointInfo | None:
    return None if entry is None else checkpoint_info(entry)


def _of_model(model: pb.ModelInfo, tenant_id: str) -> pb.TrainingRun:
    return pb.TrainingRun(
        training_run_id=model.model_id,
        tenant_id=tenant_id,
        base_model=model.facts.base_model,
        layout=model.layout,
        user_metadata_json=model.user_metadata_json,
        last_request_unix_ms=model.last_request_unix_ms,
    )
