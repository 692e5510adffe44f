"""Catalogs of made-up runs and checkpoints, written as the scheduler writes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinkermesh.v1 import types_pb2 as types

from services.common.tinker_path import TinkerPath
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.sweeper import CatalogSweeper
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, RunFacts
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions

LAYOUT = types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
FACTS = RunFacts("tinkermesh/double", LAYOUT, '{"renderer_name":"role_colon"}', "double")
AT_ONCE = 256
PER_RUN = 10
CREATED_MS = 1_790_000_000_000


def run_id(number: int) -> str:
    return f"{uuid.UUID(int=number, version=4)}:train:0"


class Batched(Functions):
    """Calls whose answers nobody needs, many to a round trip."""

    def __init__(self, redis: Any) -> None:
        super().__init__(redis)
        self._client = redis
        self._waiting: list[tuple[Any, ...]] = []

    async def call(self, name: str, keys: Sequence[str], *arguments: Any) -> Any:
        self._waiting.append(("FCALL", f"{name}_{self.library.digest}", len(keys), *keys, *arguments))
        if len(self._waiting) >= AT_ONCE:
            await self.flush()

    async def flush(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        for command in self._waiting:
            pipe.execute_command(*command)
        self._waiting.clear()
        await pipe.execute()


class Catalogs:
    """The catalogs of one Redis database, from a process of its own."""

    def __init__(self, redis_url: str, store_root: Path) -> None:
        self._redis = connect(redis_url)
        self._functions = Functions(self._redis)
        self._root = store_root
        self.store = CatalogStore(self._redis, self._functions)

    async def close(self) -> None:
        await self._redis.aclose()

    async def fill(self, tenant_id: str, checkpoints: int) -> float:
        """`checkpoints` in runs of ten; answers how many were registered per second."""
        await self._functions.load()
        batched = Batched(self._redis)
        store, started = CatalogStore(self._redis, batched), time.monotonic()
        for number in range(checkpoints // PER_RUN):
            created_ms = CREATED_MS + number * 1000
            await store.add_run(tenant_id, run_id(number), created_ms, FACTS)
            for place in range(PER_RUN):
                path = TinkerPath(run_id(number), ("weights", "sampler_weights")[place % 2], f"{place:06d}")
                await store.add_checkpoint(tenant_id, _entry(path, created_ms + place), FACTS)
        await batched.flush()
        return checkpoints / (time.monotonic() - started)

    async def sweep(self, tenant_id: str, due: int) -> float:
        """Seconds to unlist `due` expired checkpoints and delete their files."""
        paths = [TinkerPath(run_id(10**9), "weights", f"due{number}") for number in range(due)]
        for path in paths:
            self._write(path)
            await self.store.add_checkpoint(tenant_id, _entry(path, CREATED_MS, ends=1), FACTS)
        sweeper = CatalogSweeper(self.store, Artifacts(self._root, b"", lambda _digest: "", self.store))
        started, left = time.monotonic(), due
        while left > 0:
            if not (swept := await sweeper.sweep()):
                raise RuntimeError(f"{left} of {due} expired checkpoints were not swept")
            left -= swept
        return time.monotonic() - started

    def _write(self, path: TinkerPath) -> None:
        folder = self._root / "runs" / path.model_id / path.kind
        version = folder / _version(path)
        version.mkdir(parents=True)
        (version / "adapter_model.safetensors").write_bytes(bytes(4096))
        (folder / path.name).symlink_to(version.name)


def _version(path: TinkerPath) -> str:
    return f"_version_{path.name}_{'0' * 32}"


def _entry(path: TinkerPath, created_ms: int, *, ends: int = 0) -> CheckpointEntry:
    return CheckpointEntry(path, _version(path), created_ms, 1_000_000, ends, "", False)
