"""Recovery by another trainer than before, and by another leader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from services.scheduler.core.seating import Paging
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import (
    busy,
    final_state,
    kill_trainer,
    next_trainer,
    rounds,
    server_failure,
    settled_durables,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import running_mesh
from tests.doubles.fake_trainer import trainer_facts
from tests.doubles.valkey import ValkeyProcess


async def test_a_trainer_with_fewer_slots_brings_all_models_back_in_turns_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=4, paging=Paging(on=True, idle_ms=20, after_ms=300)) as mesh:
        calm = await undisturbed(mesh, [1, 2])
        models = [await mesh.opened(new_session()) for _ in range(3)]
        for model in models:
            await rounds(mesh, model, [1])
        mesh.facts = trainer_facts(slots=1, unit_tokens=4096)
        await kill_trainer(mesh)
        await asyncio.gather(*(rounds(mesh, model, [2]) for model in models))
        assert [await final_state(mesh, model, 5) for model in models] == [calm] * 3
        assert list(await mesh.slots()) == [0]


async def test_deaths_are_counted_across_leaders_MESH_04(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, lease_ttl_ms=1000) as mesh:
        good, bad = await mesh.opened(new_session()), await mesh.opened(new_session())
        mesh.trainer.faults.add("hold_before", "pass", times=0, length=66)
        poison = await mesh.batch(bad, 1, [66])
        await mesh.until(lambda: busy(mesh))
        await next_trainer(mesh, ("hold_before", "pass"), length=66)

        async def again() -> bool:
            return mesh.trainer.book.running_unit != "" and mesh.kinds() == ["init"] * len(mesh.kinds()) != []

        await mesh.until(again)
        await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")
        await kill_trainer(mesh)
        assert "stopped the trainer 2 times" in server_failure(await mesh.failed(poison))
        await rounds(mesh, good, [1])


async def test_a_leader_that_dies_between_seat_and_replay_is_followed_MESH_02_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_mesh(valkey.url, tmp_path, lease_ttl_ms=1000) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1, 2])
        store = mesh.replicas[0].training._driver._parts.store
        original, reached = store.settle, asyncio.Event()

        async def stopping(pool: str, term: int, unit: str, entries: Any, *rest: Any) -> Any:
            answer = await original(pool, term, unit, entries, *rest)
            if entries[0].action == "seated":
                reached.set()
                await asyncio.Event().wait()
            return answer

        monkeypatch.setattr(store, "settle", stopping)
        await kill_trainer(mesh)
        pending = await mesh.batch(model, 5, [3, 4], salt=3)
        await mesh.until(reached.is_set)
        await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")
        await mesh.done(pending)
        await mesh.done(await mesh.step(model, 6))
        assert await final_state(mesh, model, 7) == calm
        assert mesh.kinds().count("init") <= 2  # the other is undisturbed's


async def test_a_store_that_is_away_for_a_moment_ends_no_model_that_is_being_restored_FAIL_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=1)) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        await settled_durables(mesh)
        await next_trainer(mesh, ("fail", "load"))
        step = await mesh.step(model, 3)
        await asyncio.sleep(1.0)
        mesh.trainer.faults.rules.clear()
        await mesh.done(step)
