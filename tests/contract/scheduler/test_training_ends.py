"""Models end in order: unload, finished and expired sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.common.errors import InvalidInput
from services.scheduler.core.seating import Paging
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import WAIT_SECONDS, Mesh, running_mesh
from tests.contract.scheduler.test_training_failure import held_pass
from tests.doubles.valkey import ValkeyProcess


async def close(mesh: Mesh, session: str, *, settle: bool, reason: str = "lease expired") -> None:
    book = mesh.replicas[0].training.models
    await book.close_session("double", session, reason, settle_accepted=settle)


async def all_free(mesh: Mesh) -> None:
    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)


async def test_unload_settles_accepted_work_then_frees_a_clean_slot_ADD_09(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    async with held_pass(mesh):
        batch, step, gapped = await mesh.batch(model, 1), await mesh.step(model, 2), await mesh.step(model, 4)
        unload = await mesh.unload(model)
    await mesh.done(batch)
    await mesh.done(step)
    assert "unloaded by its client" in (await mesh.failed(gapped)).message
    assert (await mesh.done(unload)).model.model_id == model
    assert await mesh.unload(model) == unload
    await all_free(mesh)
    assert mesh.kinds() == ["init", "pass", "optim", "unload"]


async def test_unload_drops_the_open_window_ADD_09(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await mesh.batch(model, 1))
    await mesh.done(await mesh.unload(model))
    fresh = await mesh.opened(new_session())
    assert (await mesh.done(await mesh.step(fresh, 1))).optim_step.metrics["window_datums"] == 0


async def test_without_paging_unloading_a_model_that_waits_for_a_slot_fails_its_create(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=Paging(on=False)) as mesh:
        await mesh.opened(new_session())
        session = new_session()
        create = await mesh.create(session)
        unload = await mesh.unload(f"{session}:train:0")
        assert "unloaded by its client" in (await mesh.failed(create)).message
        await mesh.done(unload)


async def test_a_session_that_finishes_while_its_model_waits_for_a_slot_loses_nothing_accepted(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=Paging(on=True, idle_ms=300)) as mesh:
        await mesh.opened(new_session())
        session = new_session()
        model = f"{session}:train:0"
        create, batch, step = await mesh.create(session), await mesh.batch(model, 1), await mesh.step(model, 2)
        await close(mesh, session, settle=True, reason="finished")
        for request in (create, batch, step):
            await mesh.done(request)


async def test_unloading_during_the_create_runs_after_it(mesh: Mesh) -> None:
    session = new_session()
    hold = mesh.trainer.faults.add("hold_before", "init")
    create = await mesh.create(session)

    async def running() -> bool:
        return await mesh.state(create) == "running"

    await mesh.until(running)
    batch = await mesh.batch(f"{session}:train:0", 1)
    unload = await mesh.unload(f"{session}:train:0")
    mesh.trainer.faults.remove(hold)
    for request in (create, batch, unload):
        await mesh.done(request)
    await all_free(mesh)


async def test_a_finished_session_lets_accepted_work_settle(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    async with held_pass(mesh):
        batch, step = await mesh.batch(model, 1), await mesh.step(model, 2)
        await close(mesh, session, settle=True, reason="session finished")
        await close(mesh, session, settle=True, reason="session finished")
    await mesh.done(batch)
    await mesh.done(step)
    await all_free(mesh)
    assert (await mesh.done(batch)).batch.lengths == [3]


async def test_an_expired_lease_fails_what_waits_but_not_what_runs_LEASE_05(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    hold = mesh.trainer.faults.add("hold_before", "pass")
    batch = await mesh.batch(model, 1)

    async def running() -> bool:
        return bool(mesh.trainer.book.running_unit)

    await mesh.until(running)
    step = await mesh.step(model, 2)
    await close(mesh, session, settle=False)
    assert await mesh.state(batch) == "running"
    await asyncio.sleep(0.05)
    assert model in (await mesh.slots()).values()
    mesh.trainer.faults.remove(hold)
    await mesh.done(batch)
    assert (await mesh.failed(step)).message == "lease expired"
    await all_free(mesh)
    assert mesh.kinds()[-1] == "unload"


async def test_a_create_behind_its_sessions_end_is_refused(mesh: Mesh) -> None:
    session = new_session()
    await mesh.opened(session)
    await close(mesh, session, settle=False)
    with pytest.raises(InvalidInput, match="has ended"):
        await mesh.create(session, 1)


async def test_a_save_that_is_being_written_survives_the_end_of_its_model(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    hold = mesh.trainer.faults.add("hold_before", "publish")
    save = await mesh.save(model, 1)

    async def captured() -> bool:
        return await mesh.state(save) == "captured"

    await mesh.until(captured)
    await close(mesh, session, settle=False)
    await all_free(mesh)
    mesh.trainer.faults.remove(hold)
    assert (await mesh.done(save)).save.path.endswith("checkpoint-000001")


async def test_a_stopping_scheduler_settles_the_running_unit_before_it_lets_go_ADD_08_MESH_03(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Admitted work that has not begun is the next one's; nothing runs twice."""
    async with running_mesh(valkey.url, tmp_path, lease_ttl_ms=60_000) as mesh:
        model = await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        batch, step = await mesh.batch(model, 1), await mesh.step(model, 2)
        await mesh.until(lambda: bool(mesh.trainer.book.running_unit))
        first = mesh.replicas.pop(0)
        stopping = asyncio.create_task(first.stop())
        await asyncio.sleep(0.2)
        assert not stopping.done()
        assert await mesh.state(batch) == "running"
        mesh.trainer.faults.remove(hold)
        await asyncio.wait_for(stopping, WAIT_SECONDS)
        assert (await mesh.state(batch), await mesh.state(step)) == ("done", "queued")
        await mesh.add_replica("successor")  # at once: the lease was released, it has not run out
        await mesh.done(step)
        assert mesh.kinds() == ["init", "pass", "optim"]
