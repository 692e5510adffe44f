"""Deaths at moments when something else is under way: ends, commands that wait, saves, other models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.ids import parse_request_id
from services.scheduler.store import keys, payloads
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import (
    all_free,
    back,
    busy,
    counter,
    fields,
    final_state,
    kill_trainer,
    next_trainer,
    no_trainer,
    phase,
    replays,
    rounds,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.fake_trainer import POOL
from tests.doubles.published import read_state
from tests.doubles.valkey import ValkeyProcess

# ---- ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["unload", "session"])
async def test_accepted_work_of_an_ending_model_survives_a_death_during_its_create_FAIL_14_ADD_09(
    mesh: Mesh, where: str
) -> None:
    session = new_session()
    model = f"{session}:train:0"
    hold = mesh.trainer.faults.add("hold_before", "init", times=0)
    create = await mesh.create(session)
    await mesh.until(lambda: busy(mesh))
    work = [await mesh.batch(model, 1), await mesh.step(model, 2), await mesh.save(model, 3, "kept")]
    if where == "unload":
        work.append(await mesh.unload(model))
    else:
        await mesh.replicas[0].training.models.close_session(POOL, session, "finished", settle_accepted=True)
    old = await kill_trainer(mesh)
    old.faults.remove(hold)
    for request in (create, *work):
        await mesh.done(request)
    await all_free(mesh)


@pytest.mark.parametrize("moment", ["unseated", "seating", "replaying"])
async def test_a_lease_that_ends_during_recovery_leaves_nothing_LEASE_01_LEASE_05(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, moment: str
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=1)) as mesh:
        session = new_session()
        model = await mesh.opened(session)
        await rounds(mesh, model, [1])

        async def covered() -> bool:
            return await fields(mesh, model, "base_pos") == ["2"]

        await mesh.until(covered)
        await mesh.done(await mesh.batch(model, 3))
        if moment == "unseated":
            await no_trainer(mesh)
        else:
            await next_trainer(mesh, ("hold_before", "load" if moment == "seating" else "pass"))
        step = await mesh.step(model, 4)
        if moment != "unseated":
            await mesh.until(lambda: busy(mesh))
            assert await phase(mesh, model) == moment
        await mesh.replicas[0].training.models.close_session(POOL, session, "lease expired", settle_accepted=False)
        if moment == "unseated":
            await back(mesh)
        mesh.trainer.faults.rules.clear()
        assert (await mesh.failed(step)).message == "lease expired"
        await all_free(mesh)

        async def files_gone() -> bool:
            return not list((tmp_path / "durable" / POOL).glob("*"))

        await mesh.until(files_gone)
        assert await counter(mesh, "log_bytes") == 0
        left = [name.decode() async for name in redis_client.scan_iter(match="tm:{p:double}:*") if b":pay:" in name]
        assert left == []
        fresh = await mesh.opened(new_session())
        assert (await mesh.done(await mesh.step(fresh, 1))).optim_step.metrics["window_datums"] == 0


async def test_a_model_that_shared_a_unit_comes_back_without_its_companion_GAP_02(mesh: Mesh) -> None:
    calm = await undisturbed(mesh, [1, 2])
    stays, goes = await mesh.opened(new_session()), await mesh.opened(new_session(), tenant="tenant-b")
    async with held(mesh):
        shared = [await mesh.batch(stays, 1, [3, 4], salt=1), await mesh.batch(goes, 1, [5], tenant="tenant-b")]
    for request in shared:
        await mesh.done(request)
    await mesh.done(await mesh.step(stays, 2))
    await mesh.done(await mesh.unload(goes, tenant="tenant-b"))
    await kill_trainer(mesh)
    await rounds(mesh, stays, [2])
    assert await final_state(mesh, stays, 5) == calm
    assert not [entry for entry in replays(mesh.trainer) if len(entry["datums"]) == 3]


# ---- commands that wait --------------------------------------------------------------------


async def test_what_waits_during_a_replay_sees_the_weights_it_would_have_seen_GAP_02(mesh: Mesh) -> None:
    """A forward between steps, sent while nobody was there to run it."""

    async def job(model: str, *, dies: bool) -> list[Any]:
        await rounds(mesh, model, [1])
        await mesh.done(await mesh.batch(model, 3, [3, 4], salt=2))
        if dies:
            await no_trainer(mesh)
        sent = [await mesh.batch(model, 4, [6], backward=False), await mesh.step(model, 5)]
        sent.append(await mesh.batch(model, 6, [6], salt=-2000, backward=False))
        if dies:
            await back(mesh)
        return [await mesh.done(request) for request in sent]

    calm = await job(await mesh.opened(new_session()), dies=False)
    assert await job(await mesh.opened(new_session()), dies=True) == calm
    assert calm[0].batch != calm[2].batch


async def test_the_count_of_rejected_requests_of_a_window_survives_a_death_FAIL_17(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await mesh.done(await mesh.batch(model, 1))
    await mesh.failed(await mesh.batch(model, 2, rejected="datum 0: is bad"))
    await mesh.done(await mesh.batch(model, 3))
    await kill_trainer(mesh)
    metrics = (await mesh.done(await mesh.step(model, 4))).optim_step.metrics
    assert (metrics["window_rejected_requests"], metrics["window_datums"]) == (1, 2)
    await kill_trainer(mesh)
    assert "window_rejected_requests" not in (await mesh.done(await mesh.step(model, 5))).optim_step.metrics


# ---- what the log keeps --------------------------------------------------------------------


async def test_payloads_in_the_store_and_expired_results_do_not_keep_a_model_from_coming_back_GAP_02_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(payloads.PayloadStore.__init__.__kwdefaults__, "redis_limit", 64)
    async with running_mesh(valkey.url, tmp_path, retention_seconds=1.0) as mesh:
        calm = await undisturbed(mesh, [1, 2])
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        assert list((tmp_path / "payloads").rglob("blob-*"))

        async def forgotten() -> bool:
            rows = [name async for name in redis_client.scan_iter(match="tm:{p:double}:req:*")]
            return not [row for row in rows if await cast("Any", redis_client.hexists(row, "result"))]

        await mesh.until(forgotten)
        await kill_trainer(mesh)
        await rounds(mesh, model, [2])
        assert await final_state(mesh, model, 5) == calm


async def published(mesh: Mesh, model: str, step: int) -> None:
    """Until the store has the model's state after so many steps under the name, and its news had time to arrive."""
    meta = mesh.root / f"runs/{model}/weights/name"
    await mesh.until(lambda: meta.exists() and read_state(mesh.root, f"runs/{model}/weights/name")["step"] == step)
    await asyncio.sleep(0.1)


async def adopted(mesh: Mesh) -> bool:
    known = await cast("Any", mesh.redis.hget(keys.cell(POOL), "incarnation"))
    return bool(known == mesh.trainer.incarnation.encode())


async def test_of_saves_under_one_name_the_last_stays_whatever_dies_CKPT_04_GAP_02(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is published, but the news of it is lost until the trainer is; the second has settled."""
    model = await mesh.opened(new_session())
    store = mesh.replicas[0].training._driver._parts.store
    original = store.artifact_done
    await rounds(mesh, model, [1])

    async def late(pool: str, term: int, key: str, *rest: Any) -> Any:
        if key == lost[:1][0]:
            await asyncio.Event().wait()
        return await original(pool, term, key, *rest)

    lost: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(store, "artifact_done", late)
        hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
        first = await mesh.save(model, 3, "name", overwrite=True)
        lost.append(parse_request_id(first).key)
        mesh.trainer.faults.remove(hold)
        await mesh.done(await mesh.batch(model, 4, [3, 4], salt=9))
        await mesh.done(await mesh.step(model, 5))
        second = await mesh.save(model, 6, "name", overwrite=True)
        await published(mesh, model, 2)
        await kill_trainer(mesh)
        await mesh.until(lambda: adopted(mesh))
    await mesh.done(first)
    await mesh.done(second)
    assert read_state(mesh.root, f"runs/{model}/weights/name")["step"] == 2
