"""Recovery in company: what one model's trouble costs others, and what has changed since a command ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import trainer_pb2

from services.common.errors import InvalidInput
from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.contract.scheduler.recovering import (
    busy,
    counter,
    fields,
    final_state,
    kill_trainer,
    next_trainer,
    replays,
    rounds,
    server_failure,
    settled_durables,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.contract.scheduler.test_training_saves import create_from
from tests.doubles.fake_trainer import POOL, FakeTrainer
from tests.doubles.published import read_state
from tests.doubles.unit_runner import UnitRunner
from tests.doubles.valkey import ValkeyProcess


async def test_others_go_on_while_one_model_cannot_be_restored_FAIL_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Its base lies in a store that is away; theirs needs none. It comes back with the store."""
    async with running_mesh(valkey.url, tmp_path, slots=2) as mesh:
        source = await mesh.opened(new_session())
        path = (await mesh.done(await mesh.save(source, 1, "start"))).save.path
        stuck = (await mesh.done(await create_from(mesh, path))).model.model_id
        await settled_durables(mesh)
        await next_trainer(mesh, ("fail", "load"))
        waiting = await mesh.step(stuck, 1)
        await mesh.done(await mesh.step(source, 2))
        await mesh.done(await mesh.batch(source, 3))
        state, reason = await mesh.replicas[0].training.models.queue_state(POOL, stuck, 1)
        assert state == "paused_capacity", reason
        assert await mesh.state(waiting) == "queued"
        mesh.trainer.faults.rules.clear()
        await mesh.done(waiting)
        assert await fields(mesh, stuck, "replay_faults") == ["0"]


async def test_a_shared_unit_that_fails_in_the_replay_is_replayed_by_each_model_alone_FAIL_13_GAP_02(
    mesh: Mesh,
) -> None:
    calm = await undisturbed(mesh, [1, 2])
    models = [await mesh.opened(new_session(), tenant=f"tenant-{n}") for n in range(2)]
    async with held(mesh):
        shared = [await mesh.batch(m, 1, [3, 4], salt=1, tenant=f"tenant-{n}") for n, m in enumerate(models)]
    for request in shared:
        await mesh.done(request)
    await next_trainer(mesh)
    mesh.trainer.faults.add("fail", "pass")
    for n, model in enumerate(models):
        await mesh.done(await mesh.step(model, 2, tenant=f"tenant-{n}"))
    assert all(len(entry["datums"]) == 2 for entry in replays(mesh.trainer))
    for n, model in enumerate(models):
        await mesh.done(await mesh.batch(model, 3, [3, 4], salt=2, tenant=f"tenant-{n}"))
        await mesh.done(await mesh.step(model, 4, tenant=f"tenant-{n}"))
        path = (
            await mesh.done(await mesh.command(model, 5, tenant=f"tenant-{n}", save_weights={"name": "end"}))
        ).save.path
        assert read_state(mesh.root, public_directory(parse_tinker_path(path))) == calm


async def test_a_trainer_of_lower_rank_closes_whom_it_cannot_hold_and_says_why_MESH_05(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another configuration after the restart: what fits comes back."""
    session = new_session()
    await mesh.done(await mesh.create(session, rank=4))
    small, large = f"{session}:train:0", await mesh.opened(new_session())
    await mesh.done(await mesh.batch(small, 1))
    path = (await mesh.done(await mesh.save(large, 1, "kept"))).save.path
    await mesh.trainer.stop()
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    original = UnitRunner._effect

    def refusing(self: UnitRunner, unit: trainer_pb2.Unit, payload: bytes, kind: str, due: Any) -> Any:
        if kind == "init" and unit.init.layout.rank > 4:
            raise InvalidInput(f"rank {unit.init.layout.rank} is outside 1..4")
        return original(self, unit, payload, kind, due)

    monkeypatch.setattr(UnitRunner, "_effect", refusing)
    await mesh.start_trainer()
    message = server_failure(await mesh.failed(await mesh.step(large, 2)))
    assert "rank 8 is outside 1..4" in message
    assert message.endswith(path)
    assert (await mesh.done(await mesh.step(small, 2))).optim_step.metrics["window_datums"] == 1


async def test_a_second_death_before_anyone_adopted_the_first_successor_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Two trainers die while no leader looks; what ran under the first counts once."""
    async with running_mesh(valkey.url, tmp_path, lease_ttl_ms=1000) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        batch = await mesh.batch(model, 3, [3, 4], salt=2)
        await mesh.until(lambda: busy(mesh))
        await mesh.replicas.pop(0).kill()
        old = mesh.trainer
        await kill_trainer(mesh)
        old.faults.remove(hold)
        await kill_trainer(mesh)
        await mesh.add_replica("successor")
        await mesh.done(batch)
        await mesh.done(await mesh.step(model, 4))
        assert await final_state(mesh, model, 5) == await undisturbed(mesh, [1, 2])
        assert await counter(mesh, "trainers_lost_total") == 1


async def test_a_load_is_replayed_from_the_version_its_name_had_then_CKPT_03_GAP_02(mesh: Mesh) -> None:
    """The name was overwritten since, by the model itself, and no durable point could be written."""
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    path = (await mesh.done(await mesh.save(model, 3, "name"))).save.path
    await mesh.done(await mesh.step(model, 4))
    mesh.trainer.faults.add("fail", "publish")
    await mesh.done(await mesh.command(model, 5, load_weights={"path": path, "optimizer": True}))

    async def failed() -> bool:
        return await counter(mesh, "durable_failures_total") == 1

    await mesh.until(failed)
    await mesh.done(await mesh.batch(model, 6, [3, 4]))
    await mesh.done(await mesh.batch(model, 7, [5]))
    await mesh.done(await mesh.step(model, 8))
    assert (await mesh.done(await mesh.save(model, 9, "name", overwrite=True))).save.path == path
    before = await final_state(mesh, model, 10)
    assert before["step"] == 2
    await kill_trainer(mesh)
    assert await final_state(mesh, model, 11) == before
    loads = [entry for entry in mesh.trainer.journal.entries if entry["kind"] == "load"]
    assert len(loads) == 1
