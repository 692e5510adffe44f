"""Which adapter a task's lora_path means, and whether its tenant may use it: each path is looked at once a job."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, UserError
from services.common.tinker_path import SAMPLER_WEIGHTS, parse_tinker_path
from services.scheduler.pools import same_base_model
from services.scheduler.ports import ArtifactReader
from services.scheduler.sampling.adapters import adapter_ref


class Adapters:
    """Of one tenant, for one job. `facts` of the pool it runs in."""

    def __init__(self, artifacts: ArtifactReader, tenant_id: str, facts: types.PoolFacts) -> None:
        self._artifacts = artifacts
        self._tenant_id = tenant_id
        self._facts = facts
        self._known: dict[str, types.AdapterRef | UserError] = {}

    async def resolve(self, lora_path: str) -> types.AdapterRef:
        """The version it names now. Raises InvalidInput, MissingResource, Forbidden."""
        if lora_path not in self._known:
            try:
                self._known[lora_path] = await self._resolve(lora_path)
            except UserError as error:
                self._known[lora_path] = error
        found = self._known[lora_path]
        if isinstance(found, UserError):
            raise found
        return found

    async def _resolve(self, lora_path: str) -> types.AdapterRef:
        path = parse_tinker_path(lora_path, "lora_path")
        if path.kind != SAMPLER_WEIGHTS:
            raise InvalidInput(
                f"lora_path: {path} is of kind {path.kind!r}; sampling takes kind {SAMPLER_WEIGHTS!r}: "
                "save one with save_weights_for_sampler"
            )
        info = await self._artifacts.weights_info(str(path), self._tenant_id, "")
        if not same_base_model(self._facts, info.base_model):
            raise InvalidInput(
                f"lora_path: {path} was trained on {info.base_model!r}, this job samples {self._facts.base_model!r}"
            )
        return adapter_ref(path.model_id, await self._artifacts.version_directory(str(path), self._tenant_id, ""))
