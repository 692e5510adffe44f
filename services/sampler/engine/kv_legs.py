"""Legs of prefill and decode on vLLM: the connector's tier, and names for adapters that two processes share."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest

from services.common.errors import InvalidInput
from services.common.redis_url import RedisAddress
from services.sampler.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from services.sampler.engine.zero_adapter import BASE_ENGINE_ID
from services.sampler.kv_connector import connector
from services.sampler.kv_connector.block_store import BlockStore
from services.sampler.kv_connector.catalog import Catalog
from services.sampler.kv_connector.keys import BlockKeys, PlainPrompt
from services.sampler.kv_connector.leg import Leg, Part
from services.sampler.kv_connector.scheduler_side import SchedulerSide
from services.sampler.kv_connector.scope import HASH_ALGORITHM, Scope
from services.sampler.kv_connector.tier import KvTier, TierBounds
from services.sampler.kv_connector.worker_side import WorkerSide, geometry_of
from services.sampler.ports import EngineAdapter, SequenceRequest

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class KvConfig:
    """Of a sampler with a role: where its blocks go and come from, and what makes them interchangeable."""

    directory: Path
    tier: str
    """The directory's own id."""
    bounds: TierBounds
    redis: RedisAddress
    pool: str
    hash_seed: str
    model_fingerprint: str
    store_root: Path

    def engine_args(self) -> dict[str, Any]:
        return {
            "prefix_caching_hash_algo": HASH_ALGORITHM,
            # A connector's block ids are of one group of layers.
            "disable_hybrid_kv_cache_manager": True,
            "kv_transfer_config": KVTransferConfig(
                kv_connector=connector.NAME,
                kv_connector_module_path=connector.__name__,
                kv_role="kv_both",
                kv_load_failure_policy="fail" if self.bounds.strict else "recompute",
            ),
        }


class KvLegs:
    """`attach` in the engine's thread, once it is built; the rest in the event loop."""

    def __init__(self, config: KvConfig, block_size: int) -> None:
        self._config = config
        self._keys = BlockKeys(block_size, HASH_ALGORITHM)
        self._block_size = block_size
        self._loras = {BASE_ENGINE_ID: self._base()}
        self.tier: KvTier | None = None
        self._held: Callable[[Sequence[str]], int] = lambda keys: 0

    def attach(self, engine: Any, engine_name: str, dtype: str) -> None:
        """Raises InvalidInput for a cache that cannot be shared, OSError for a directory that cannot be used."""
        ours, memory = connector.scheduler_connector(engine), connector.worker_connector()
        geometry = geometry_of(memory.caches, self._block_size)
        scope = Scope(
            engine=engine_name,
            model_fingerprint=self._config.model_fingerprint,
            hash_algorithm=engine.vllm_config.cache_config.prefix_caching_hash_algo,
            hash_seed=self._config.hash_seed,
            dtype=dtype,
            geometry=geometry,
        )
        store = BlockStore(self._config.directory, scope.namespace, geometry)
        catalog = Catalog(self._config.redis, self._config.pool, f"{self._config.tier}:{scope.namespace}")
        tier = KvTier(store, catalog, self._config.bounds)
        tier.start()
        strict = self._config.bounds.strict
        self._held = ours.held
        ours.attach_scheduler(SchedulerSide(self._block_size, self._keys, tier.available, strict=strict))
        memory.attach_worker(WorkerSide(memory.caches, tier))
        self.tier = tier

    def stop(self) -> None:
        if self.tier is not None:
            self.tier.stop()

    @asynccontextmanager
    async def around(self, request: SequenceRequest) -> AsyncIterator[None]:
        """Around all the engine does for a request. Raises Unavailable naming the leg's stage."""
        if request.leg is None or self.tier is None:
            yield
            return
        known = request.prompt if request.leg is Part.PREFILL else request.prompt[:-1]
        prompt = PlainPrompt(self.lora(request.adapter), request.cache_salt or None)
        keys = self._keys.of_prompt(prompt, known)
        if request.leg is Part.PREFILL:
            leg = self.tier.saving(request.sequence_id, keys)
        else:
            # One that the engine loses before it takes the request is read by the engine itself.
            leg = self.tier.fetched(request.sequence_id, keys, self._held(keys))
        async with leg:
            yield

    def extra_args(self, request: SequenceRequest) -> dict[str, Any]:
        """Of the engine's sampling parameters: how the connector learns of the leg."""
        if request.leg is None:
            return {}
        return {"kv_transfer_params": Leg(request.leg, request.sequence_id).params()}

    def lora(self, adapter: EngineAdapter | None) -> LoRARequest:
        """As the engine hashes it: named alike by every sampler that loaded the same bytes, and by no other."""
        return self._loras[BASE_ENGINE_ID if adapter is None else adapter.engine_id]

    def learn(self, adapter: EngineAdapter) -> None:
        """Before the adapter's first request. Raises InvalidInput when its files cannot be read."""
        relative = adapter.directory.relative_to(self._config.store_root.resolve())
        name = f"{adapter.name}@{_digest(adapter.directory)}"
        self._loras[adapter.engine_id] = LoRARequest(name, adapter.engine_id, str(relative))

    def forget(self, adapter: EngineAdapter) -> None:
        self._loras.pop(adapter.engine_id, None)

    def _base(self) -> LoRARequest:
        return LoRARequest(f"base@{self._config.model_fingerprint}", BASE_ENGINE_ID, "base")


def _digest(directory: Path) -> str:
    """Of an adapter's files: a name that was bound to other bytes once never meets their blocks."""
    digest = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            with (directory / name).open("rb") as file:
                while part := file.read(_CHUNK):
                    digest.update(part)
        except OSError as error:
            raise InvalidInput(f"adapter file {name} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:32]
