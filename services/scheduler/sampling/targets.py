"""What a tenant may sample from: a base model, or a snapshot it may read."""

from __future__ import annotations

from dataclasses import dataclass

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.tinker_path import SAMPLER_WEIGHTS, TinkerPath, parse_tinker_path
from services.scheduler.pools import Pools, same_base_model
from services.scheduler.ports import ArtifactReader
from services.scheduler.sampling.adapters import adapter_ref


@dataclass(frozen=True, slots=True)
class Target:
    """A pool, and the pinned version to sample from; None = its base model."""

    facts: types.PoolFacts
    adapter: types.AdapterRef | None = None
    path: TinkerPath | None = None


class Targets:
    def __init__(self, artifacts: ArtifactReader, pools: Pools) -> None:
        self._artifacts = artifacts
        self._pools = pools

    async def of(self, tenant_id: str, base_model: str, model_path: str) -> Target:
        """With both, the path's base model must be the named one. Raises InvalidInput, Forbidden, MissingResource."""
        if model_path:
            return await self._of_snapshot(tenant_id, base_model, model_path)
        if not base_model:
            raise InvalidInput("model_path: give a sampler_weights path, or a base_model to sample from")
        return Target(await self._pools.of_base_model(base_model))

    async def _of_snapshot(self, tenant_id: str, base_model: str, model_path: str) -> Target:
        path = parse_tinker_path(model_path, "model_path")
        if path.kind != SAMPLER_WEIGHTS:
            raise InvalidInput(
                f"model_path: {path} is of kind {path.kind!r}; sampling takes kind "
                f"{SAMPLER_WEIGHTS!r}: save one with save_weights_for_sampler"
            )
        info = await self._artifacts.weights_info(str(path), tenant_id, "")
        facts = await self._pools.of_base_model(info.base_model, "model_path")
        if base_model and not same_base_model(facts, base_model):
            raise InvalidInput(
                f"base_model: {base_model[:300]!r} is not what {path} was trained on: {info.base_model!r}"
            )
        directory = await self._artifacts.version_directory(str(path), tenant_id, "")
        return Target(facts, adapter_ref(path.model_id, directory), path)
