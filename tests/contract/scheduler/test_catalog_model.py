"""Random histories of a catalog against a plain dictionary: every index tells the same story."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.tinker_path import TinkerPath
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, Doomed, RunFacts
from services.scheduler.store.functions import Functions

TENANT, FACTS = "tenant", RunFacts("base", types.AdapterLayout(rank=8))
RUNS = [f"{uuid.UUID(int=number)}:train:0" for number in range(3)]
KINDS = ("weights", "sampler_weights", "external_weights")
FAR_MS = 4_000_000_000_000
STEPS = 150


@dataclass
class Model:
    """What must be there, by path; and which versions' files may go."""

    alive: dict[TinkerPath, CheckpointEntry] = field(default_factory=dict)
    doomed: set[Doomed] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    versions: int = 0


class History:
    def __init__(self, store: CatalogStore, seed: int) -> None:
        self.store, self.random, self.model = store, random.Random(seed), Model()

    async def step(self) -> None:
        path = TinkerPath(self.random.choice(RUNS), self.random.choice(KINDS), self.random.choice("ab"))
        acts = [self.save, self.save, self.again, self.publish, self.limit, self.end, self.delete, self.sweep]
        await self.random.choice(acts)(path)

    async def save(self, path: TinkerPath) -> None:
        self.model.versions += 1
        number = self.model.versions
        ends = self.random.choice([0, FAR_MS])
        since = self.model.alive[path].since_ms if path in self.model.alive else number
        version = f"_version_{path.name}_{number}"
        entry = CheckpointEntry(path, version, number, number * 10, ends, "", False, since_ms=since)
        await self.store.add_checkpoint(TENANT, entry, FACTS)
        self.model.alive[path] = entry
        self.model.runs.add(path.model_id)

    async def again(self, path: TinkerPath) -> None:
        """A leader that took over tells of the same save once more."""
        if path in self.model.alive:
            told = replace(self.model.alive[path], public=False, expires_ms=0)
            await self.store.add_checkpoint(TENANT, told, FACTS)

    async def publish(self, path: TinkerPath) -> None:
        if path in self.model.alive:
            public = self.random.random() < 0.5
            await self.store.set_public(TENANT, path, public)
            self.model.alive[path] = replace(self.model.alive[path], public=public)

    async def limit(self, path: TinkerPath) -> None:
        if path in self.model.alive:
            await self.store.set_ttl(TENANT, path, None)
            self.model.alive[path] = replace(self.model.alive[path], expires_ms=0)

    async def end(self, path: TinkerPath) -> None:
        """Its time is over at once; the next look at the catalog dooms it."""
        if path in self.model.alive:
            await self.store.set_ttl(TENANT, path, 0)
            self._gone(path)
            await self.store.due(TENANT, 1)

    async def delete(self, path: TinkerPath) -> None:
        if path not in self.model.alive:
            return
        assert await self.store.doom(TENANT, path) == self.model.alive[path].version
        gone = self._gone(path)
        if self.random.random() < 0.5:
            await self.store.forget(TENANT, gone)
            self.model.doomed.discard(gone)

    async def sweep(self, _path: TinkerPath) -> None:
        """The files of a version are gone, whose name may be taken again."""
        if self.model.doomed:
            gone = self.random.choice(sorted(self.model.doomed))
            await self.store.forget(TENANT, gone)
            self.model.doomed.discard(gone)

    def _gone(self, path: TinkerPath) -> Doomed:
        gone = Doomed(path, self.model.alive.pop(path).version)
        self.model.doomed.add(gone)
        return gone

    async def check(self) -> None:
        model, newest = self.model, sorted(self.model.alive.values(), key=lambda one: -one.created_ms)
        assert await self.store.checkpoints(TENANT, "", 0, 100) == (len(newest), newest)
        for run_id in model.runs:
            mine = [one for one in newest if one.path.model_id == run_id]
            assert await self.store.checkpoints(TENANT, run_id, 0, 100) == (len(mine), mine)
            run = await self.store.run(TENANT, run_id)
            assert run is not None
            assert run.last_checkpoint == next((one for one in mine if one.path.kind == "weights"), None)
            assert run.last_sampler_checkpoint == next((o for o in mine if o.path.kind == "sampler_weights"), None)
            sizes = await self.store.session_sizes(TENANT, [run_id.partition(":")[0]])
            assert sizes == [(len(mine), sum(one.size_bytes for one in mine))]
        assert {run.run_id for run in (await self.store.runs(TENANT, "", 0, 10))[1]} == model.runs
        assert set((await self.store.due(TENANT, 1000))[0]) == model.doomed


@pytest.mark.parametrize("seed", range(4))
async def test_every_index_tells_the_same_story(redis_client: Redis, functions: Functions, seed: int) -> None:
    history = History(CatalogStore(redis_client, functions), seed)
    for number in range(STEPS):
        await history.step()
        if number % 10 == 0:
            await history.check()
    await history.check()
