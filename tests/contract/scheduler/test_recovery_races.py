"""Deaths at moments when something else is under way: ends, saves, durable points, other models, other leaders."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.ids import parse_request_id
from services.scheduler.core.seating import Paging
from services.scheduler.store import keys, payloads
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import (
    busy,
    counter,
    fields,
    final_state,
    kill_trainer,
    live,
    log_length,
    phase,
    replays,
    rounds,
    server_failure,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.contract.scheduler.test_training_saves import create_from
from tests.doubles.fake_trainer import POOL, FakeTrainer, trainer_facts
from tests.doubles.published import read_state
from tests.doubles.valkey import ValkeyProcess


async def next_trainer(mesh: Mesh, *faults: tuple[str, str], **options: Any) -> None:
    """The trainer dies; the next one has `faults` (action, kind) from its start, for ever."""
    await mesh.trainer.stop()
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    for action, kind in faults:
        mesh.trainer.faults.add(action, kind, times=0, **options)
    await mesh.start_trainer()


async def no_trainer(mesh: Mesh) -> None:
    """The trainer is dead and nobody has registered since."""
    await mesh.trainer.stop()
    mesh.directory.registration = None


async def back(mesh: Mesh) -> None:
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    await mesh.start_trainer()


async def all_free(mesh: Mesh) -> None:
    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)


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


# ---- durable points ------------------------------------------------------------------------


async def settled_durables(mesh: Mesh) -> None:
    async def quiet() -> bool:
        return not await cast("Any", mesh.redis.hlen(keys.durables_running(POOL)))

    await mesh.until(quiet)


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
            await asyncio.wait_for(reached.wait(), 10)
            await kill_trainer(mesh)
            await live(mesh, model)
        assert await original(*told[0])  # it arrives after all: of another life
        assert await fields(mesh, model, "base_pos") != ["4"] or await log_length(mesh, model) == 0
        await rounds(mesh, model, [3, 4])
        await kill_trainer(mesh)
        await rounds(mesh, model, [5])
        assert await final_state(mesh, model, 11) == calm


# ---- other trainers, other leaders ---------------------------------------------------------


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

        async def stopping(pool: str, term: int, unit: str, entries: Any) -> Any:
            answer = await original(pool, term, unit, entries)
            if entries[0].action == "seated":
                reached.set()
                await asyncio.Event().wait()
            return answer

        monkeypatch.setattr(store, "settle", stopping)
        await kill_trainer(mesh)
        pending = await mesh.batch(model, 5, [3, 4], salt=3)
        await asyncio.wait_for(reached.wait(), 10)
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
