"""A scheduler dies between any two steps; a trainer dies: each future settles once, each effect happens once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.errors import StaleFence
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.leases import LeaseStore
from services.scheduler.store.training import Settlement, TrainingStore
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.journal import datum_counts, unit_counts
from tests.doubles.valkey import ValkeyProcess

SHORT = {"lease_ttl_ms": 1000}


class Died(Exception):
    """The process is gone at this point."""


def dies_at(mesh: Mesh, step: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The leading replica stops for ever at `step`; the event is set then."""
    parts = mesh.replicas[0].training._driver._parts
    reached = asyncio.Event()

    def die(target: Any, name: str, *, after: bool) -> None:
        original = getattr(target, name)

        async def dying(*arguments: Any) -> Any:
            result = await original(*arguments) if after else None
            reached.set()
            await asyncio.Event().wait()
            return result

        monkeypatch.setattr(target, name, dying)

    from services.scheduler.dispatch import client

    if step == "before issue":
        die(parts.store, "issue", after=False)
    elif step == "after issue, before the call":
        die(client.TrainerClient, "execute", after=False)
    elif step == "after the call, before settling":
        die(parts.store, "settle", after=False)
    elif step == "after settling, before acknowledging":
        die(client.TrainerClient, "acknowledge", after=False)
    return reached


STEPS = [
    "before issue",
    "after issue, before the call",
    "after the call, before settling",
    "after settling, before acknowledging",
]


@pytest.mark.parametrize("step", STEPS)
async def test_a_scheduler_killed_between_steps_loses_and_repeats_nothing_ORD_11_FUT_01(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, step: str
) -> None:
    async with running_mesh(valkey.url, tmp_path, **SHORT) as mesh:
        model = await mesh.opened(new_session())
        with pytest.MonkeyPatch.context() as patch:
            reached = dies_at(mesh, step, patch)
            batch = await mesh.batch(model, 1, [3, 4, 5])
            optim = await mesh.step(model, 2)
            await mesh.until(reached.is_set)
            await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")
        assert (await mesh.done(batch)).batch.lengths == [3, 4, 5]
        assert (await mesh.done(optim)).optim_step.metrics["window_datums"] == 3
        assert set(datum_counts(mesh.trainer.journal.entries).values()) == {1}
        assert set(unit_counts(mesh.trainer.journal.entries).values()) == {1}
        assert await redis_client.scard("tm:{p:double}:units") == 0

        async def acknowledged() -> bool:
            return mesh.trainer.book.finished() == []

        await mesh.until(acknowledged)


async def test_killing_the_leader_again_and_again_keeps_order_and_count_ORD_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=16, replicas=2, **SHORT) as mesh:
        mesh.trainer.faults.add("delay_after", times=0, seconds=0.02)
        session = new_session()
        model = f"{session}:train:0"
        await mesh.create(session)
        requests = []
        for seq in range(1, 41):
            make = mesh.step if seq % 4 == 0 else mesh.batch
            requests.append(await make(model, seq))
        for number in range(6):
            await asyncio.sleep(0.15)
            await mesh.replicas.pop(0).kill()
            await mesh.add_replica(f"successor{number}")
        results = [await mesh.done(request) for request in requests]
        steps = [r.optim_step.metrics["window_datums"] for r in results if r.HasField("optim_step")]
        assert steps == [3.0] * 10
        assert set(datum_counts(mesh.trainer.journal.entries).values()) == {1}


async def test_a_captured_save_is_followed_by_the_next_leader(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, **SHORT) as mesh:
        model = await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "publish")
        save = await mesh.save(model, 1)

        async def captured() -> bool:
            return await mesh.state(save) == "captured"

        await mesh.until(captured)
        await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")
        mesh.trainer.faults.remove(hold)
        assert (await mesh.done(save)).save.path.endswith("checkpoint-000001")


async def test_a_released_lease_is_taken_at_once(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> None:
    async with running_mesh(valkey.url, tmp_path, replicas=2, lease_ttl_ms=60_000) as mesh:
        model = await mesh.opened(new_session())
        first = await cast("Any", redis_client.hget("tm:{p:double}:lease", "replica"))
        leader = next(r for r in mesh.replicas if r.training._leadership._replica.encode() == first)
        mesh.replicas.remove(leader)
        await leader.stop()
        await mesh.done(await mesh.batch(model, 1))


async def test_terms_only_grow_and_an_old_one_writes_nothing_MESH_01(redis_client: Redis, functions: Functions) -> None:
    one, two, store = LeaseStore(functions), LeaseStore(functions), TrainingStore(functions, 1000)
    first = await one.acquire("p", "one", 60_000)
    assert (await two.acquire("p", "two", 60_000)).term == 0
    assert (await one.acquire("p", "one", 60_000)).term == first.term
    await cast("Any", redis_client.hset(keys.lease("p"), "expires_ms", 0))
    second = await two.acquire("p", "two", 60_000)
    assert second.term == first.term + 1
    assert not await one.renew("p", first.term, 300)
    assert await two.renew("p", second.term, 60_000)
    with pytest.raises(StaleFence):
        await store.settle("p", first.term, "unit", [Settlement("unloaded")])
    with pytest.raises(StaleFence):
        await store.adopt("p", first.term, "incarnation", 4)
    assert await store.adopt("p", second.term, "incarnation", 4) == 0


async def test_a_lost_trainer_ends_no_model_and_the_dead_one_is_asked_nothing_FAIL_14(mesh: Mesh) -> None:
    saved, unsaved = await mesh.opened(new_session()), await mesh.opened(new_session())
    await mesh.done(await mesh.save(saved, 1))
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    running, other = await mesh.batch(saved, 2), await mesh.batch(unsaved, 1)
    await mesh.until(lambda: busy(mesh))
    old = mesh.trainer
    await mesh.replace_trainer()
    await mesh.done(running)
    await mesh.done(other)
    await mesh.done(await mesh.batch(saved, 3))
    assert "unload" not in [entry["kind"] for entry in old.journal.entries]
    old.faults.remove(hold)


async def busy(mesh: Mesh) -> bool:
    return bool(mesh.trainer.book.running_unit)


async def test_a_create_under_way_waits_for_the_new_trainer(mesh: Mesh) -> None:
    mesh.trainer.faults.add("hold_before", "init", times=0)
    session = new_session()
    create, batch = await mesh.create(session), await mesh.batch(f"{session}:train:0", 1)
    await mesh.until(lambda: busy(mesh))
    await mesh.replace_trainer()
    await mesh.done(create)
    await mesh.done(batch)


async def test_work_waits_while_no_trainer_is_there_FAIL_14(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    registration, mesh.directory.registration = mesh.directory.registration, None
    await asyncio.sleep(0.7)  # longer than the driver looks away
    batch = await mesh.batch(model, 1)
    state, reason = await mesh.replicas[0].training.models.queue_state("double", model, 1)
    assert (state, "no live trainer" in reason) == ("paused_capacity", True)
    assert await mesh.state(batch) == "queued"
    mesh.directory.registration = registration
    await mesh.done(batch)


async def test_a_restarted_redis_goes_on_where_it_was_GAP_16(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path) as mesh:
        model = await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        batch = await mesh.batch(model, 1, [3, 4])
        await mesh.until(lambda: busy(mesh))
        valkey.kill()
        valkey.start()
        mesh.trainer.faults.remove(hold)
        await mesh.done(batch)
        assert (await mesh.done(await mesh.step(model, 2))).optim_step.metrics["window_datums"] == 2


async def test_a_restarted_process_of_the_same_name_gets_a_term_of_its_own(functions: Functions) -> None:
    assert (await LeaseStore(functions).acquire("p", "scheduler-0", 5000)).term == 1
    assert (await LeaseStore(functions).acquire("p", "scheduler-0", 5000)).term == 0
