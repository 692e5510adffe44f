"""Training runs: a model as it is remembered, by its row or by what it left in the store."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import MissingResource, UnknownId
from services.common.ids import parse_model_id
from services.common.tinker_path import SAMPLER_WEIGHTS, WEIGHTS, parse_checkpoint_id
from services.scheduler.artifacts import Artifact, Artifacts
from services.scheduler.ports import ModelBook


class TrainingRuns:
    def __init__(self, models: ModelBook, artifacts: Artifacts) -> None:
        self._models = models
        self._artifacts = artifacts

    async def get(self, training_run_id: str, tenant_id: str) -> pb.TrainingRun:
        """Raises MissingResource, Forbidden."""
        model = await self._model(training_run_id, tenant_id)
        artifacts = await self._artifacts.of_model(training_run_id, tenant_id)
        if model is None and not artifacts:
            raise MissingResource(f"training_run_id {training_run_id} is not known and left no checkpoint")
        run = pb.TrainingRun(training_run_id=training_run_id, tenant_id=tenant_id)
        if model is not None:
            _describe_by_model(run, model)
        else:
            _describe_by_artifact(run, artifacts[0])
        _add_checkpoints(run, artifacts)
        return run

    async def delete(self, training_run_id: str, checkpoint_id: str, tenant_id: str) -> None:
        """Raises InvalidInput, MissingResource, Forbidden."""
        await self._artifacts.delete(parse_checkpoint_id(training_run_id, checkpoint_id), tenant_id)

    async def _model(self, training_run_id: str, tenant_id: str) -> pb.ModelInfo | None:
        try:
            parse_model_id(training_run_id)
        except UnknownId as error:
            raise MissingResource(f"training_run_id: {error.message}") from error
        try:
            return await self._models.describe(training_run_id, tenant_id)
        except UnknownId:
            return None


def _describe_by_model(run: pb.TrainingRun, model: pb.ModelInfo) -> None:
    run.base_model = model.facts.base_model
    run.layout.CopyFrom(model.layout)
    run.user_metadata_json = model.user_metadata_json
    run.last_request_unix_ms = model.last_request_unix_ms


def _describe_by_artifact(run: pb.TrainingRun, newest: Artifact) -> None:
    run.base_model = newest.meta.base_model
    run.layout.CopyFrom(newest.meta.layout)
    run.last_request_unix_ms = newest.meta.created_unix_ms


def _add_checkpoints(run: pb.TrainingRun, newest_first: list[Artifact]) -> None:
    for artifact in reversed(newest_first):
        if artifact.path.kind == WEIGHTS:
            run.last_checkpoint.CopyFrom(artifact.info())
        elif artifact.path.kind == SAMPLER_WEIGHTS:
            run.last_sampler_checkpoint.CopyFrom(artifact.info())
        run.last_request_unix_ms = max(run.last_request_unix_ms, artifact.meta.created_unix_ms)
