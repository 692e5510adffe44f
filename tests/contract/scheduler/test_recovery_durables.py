"""Deaths around a durable point, and sources that are gone before or after it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import (
    busy,
    counter,
    fields,
    final_state,
    kill_trainer,
    live,
    log_length,
    next_trainer,
    rounds,
    server_failure,
    settled_durables,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_saves import create_from
from tests.doubles.valkey import ValkeyProcess


async def test_a_source_deleted_after_recovery_is_needed_no_more_GAP_02(mesh: Mesh) -> None:
    """The durable point that frees a model from its source was lost with the trainer: it is made again."""
    source = await mesh.opened(new_session())
    await rounds(mesh, source, [1])
    path = (await mesh.done(await mesh.save(source, 3, "start"))).save.path
    hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
    loaded = (await mesh.done(await create_from(mesh, path))).model.model_id

    async def captured() -> bool:
        return await fields(mesh, loaded, "durable_covers") == ["0"]

    await mesh.until(captured)
    old = await kill_trainer(mesh)
    await mesh.done(await mesh.batch(loaded, 1))
    old.faults.remove(hold)

    async def freed() -> bool:
        return '"durable"' in (await fields(mesh, loaded, "base"))[0]

    await mesh.until(freed)
    shutil.rmtree(mesh.root / "runs" / source / "weights")
    await kill_trainer(mesh)
    assert (await mesh.done(await mesh.step(loaded, 2))).optim_step.metrics["window_datums"] == 1


async def test_a_source_deleted_before_the_first_durable_point_closes_its_model_and_says_so_MESH_05(mesh: Mesh) -> None:
    source = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(source, 1, "start"))).save.path
    mesh.trainer.faults.add("fail", "publish", times=0)
    loaded = (await mesh.done(await create_from(mesh, path))).model.model_id
    shutil.rmtree(mesh.root / "runs" / source / "weights")
    await kill_trainer(mesh)
    message = server_failure(await mesh.failed(await mesh.step(loaded, 1)))
    assert "recovery failed" in message
    assert message.endswith("no checkpoint of this model was saved: create a new model")
    await mesh.done(await mesh.step(source, 2))


async def test_a_durable_point_that_stops_the_trainer_does_not_stop_training_FAIL_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=1)) as mesh:
        model = await mesh.opened(new_session())
        mesh.trainer.faults.add("hold_before", "save", times=0)
        await rounds(mesh, model, [1])
        await mesh.until(lambda: busy(mesh))
        await next_trainer(mesh, ("hold_before", "save"))
        await rounds(mesh, model, [2, 3])
        mesh.trainer.faults.rules.clear()
        assert await final_state(mesh, model, 7) == await undisturbed(mesh, [1, 2, 3])
        assert await counter(mesh, "durable_failures_total") >= 1


async def test_a_death_while_a_durable_point_is_being_settled_costs_nothing_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=2)) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3, 4, 5])
        await settled_durables(mesh)
        model = await mesh.opened(new_session())
        store = mesh.replicas[0].training._driver._parts.store
        original, reached, told = store.durable_settled, asyncio.Event(), []

        async def late(*values: Any) -> bool:
            told.append(values)
            reached.set()
            await asyncio.Event().wait()
            return True

        with monkeypatch.context() as patch:
            patch.setattr(store, "durable_settled", late)
            await rounds(mesh, model, [1, 2])
            await mesh.until(reached.is_set)
            await kill_trainer(mesh)
            await live(mesh, model)
        assert await original(*told[0])  # it arrives after all: of another life
        assert await fields(mesh, model, "base_pos") != ["4"] or await log_length(mesh, model) == 0
        await rounds(mesh, model, [3, 4])
        await kill_trainer(mesh)
        await rounds(mesh, model, [5])
        assert await final_state(mesh, model, 11) == calm
