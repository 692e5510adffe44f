"""Several trainers of one pool: where models live, and that one trainer's end is nothing to the others (GAP-17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.errors import StaleFence, Unavailable
from services.scheduler.core.seating import Paging
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.registry import RegistryStore
from tests.contract.scheduler.recovering import counter, final_state, phase, replays, rounds, undisturbed
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import running_mesh
from tests.contract.scheduler.two_cells import SECOND, TwoCells, two_cells
from tests.doubles.fake_trainer import POOL, FakeTrainer
from tests.doubles.valkey import ValkeyProcess


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[TwoCells]:
    async with two_cells(valkey.url, tmp_path) as running:
        yield running


def busy(trainer: FakeTrainer) -> bool:
    return bool(trainer.book.running_unit)


async def test_six_models_live_three_on_each_trainer_and_train_at_once_GAP_17(mesh: TwoCells) -> None:
    calm = await undisturbed(mesh, [1, 2])
    await mesh.done(await mesh.unload((await mesh.held("0") | await mesh.held(SECOND)).pop()))
    models = await mesh.six()
    assert await mesh.cells_of(models) == ["0", "0", "0", SECOND, SECOND, SECOND]
    assert (await mesh.held("0"), await mesh.held(SECOND)) == (set(models[:3]), set(models[3:]))
    holds = [(trainer, trainer.faults.add("hold_before", "pass", times=0)) for trainer in (mesh.trainer, mesh.second)]
    jobs = asyncio.gather(*(rounds(mesh, model, [1, 2]) for model in models))
    await mesh.until(lambda: busy(mesh.trainer) and busy(mesh.second))
    for trainer, hold in holds:
        trainer.faults.remove(hold)
    await jobs
    assert [await final_state(mesh, model, 5) for model in models] == [calm] * 6
    assert await mesh.cells_of(models) == ["0", "0", "0", SECOND, SECOND, SECOND]


async def test_the_death_of_one_trainer_leaves_the_models_of_the_other_alone_GAP_17(mesh: TwoCells) -> None:
    calm = await undisturbed(mesh, [1, 2, 3])
    models = await mesh.six()
    here, there = models[:3], models[3:]
    await asyncio.gather(*(rounds(mesh, model, [1, 2]) for model in models))
    await mesh.done(await mesh.batch(there[0], 5, [3, 4], salt=3))
    hold = mesh.second.faults.add("hold_before", "pass", times=0)
    running = await mesh.batch(there[1], 5, [3, 4], salt=3)
    await mesh.until(lambda: busy(mesh.second))
    await mesh.kill_second()
    mesh.second.faults.remove(hold)

    await asyncio.gather(*(rounds(mesh, model, [3]) for model in here))
    assert [await final_state(mesh, model, 7) for model in here] == [calm] * 3
    assert await mesh.state(running) in ("running", "queued")
    state, reason = await mesh.replicas[0].training.models.queue_state(POOL, there[1], 5)
    assert (state, reason) == ("paused_capacity", "no live trainer: the mesh waits for it to recover")

    await mesh.next_second()
    await mesh.done(running)
    await mesh.done(await mesh.step(there[0], 6))
    await mesh.done(await mesh.step(there[1], 6))
    await rounds(mesh, there[2], [3])
    assert [await final_state(mesh, model, 7) for model in there] == [calm] * 3
    assert await mesh.cells_of(models) == ["0", "0", "0", SECOND, SECOND, SECOND]
    assert replays(mesh.trainer) == []
    assert await counter(mesh, "trainers_lost_total") == 1


async def test_places_survive_another_leader_GAP_17(mesh: TwoCells) -> None:
    models = await mesh.six()
    hold = mesh.second.faults.add("hold_before", "pass", times=0)
    running = await mesh.batch(models[5], 1, [3, 4], salt=1)
    await mesh.until(lambda: busy(mesh.second))
    await mesh.replicas[0].kill()
    mesh.replicas.clear()
    await mesh.add_replica("next")
    mesh.second.faults.remove(hold)
    await mesh.done(running)
    await mesh.done(await mesh.batch(models[0], 1, [3, 4], salt=1))
    assert await mesh.cells_of(models) == ["0", "0", "0", SECOND, SECOND, SECOND]
    assert [entry["slots"] for entry in mesh.second.journal.entries if entry["kind"] == "pass"] == [[2]]


async def test_a_create_does_not_wait_for_a_trainer_that_is_away(mesh: TwoCells) -> None:
    first = await mesh.opened(new_session())
    assert await mesh.cell_of(first) == "0"
    hold = mesh.second.faults.add("hold_before", "init", times=0)
    held, waiting = await mesh.create(new_session()), await mesh.create(session := new_session())
    await mesh.until(lambda: busy(mesh.second))
    assert await mesh.cell_of(f"{session}:train:0") == "0"  # one each by now, and the first by name
    behind = await mesh.create(late := new_session())
    assert await mesh.cell_of(f"{late}:train:0") == SECOND
    await mesh.kill_second()
    mesh.second.faults.remove(hold)
    await mesh.done(waiting)
    await mesh.done(behind)
    assert await mesh.cell_of(f"{late}:train:0") == "0"
    await mesh.next_second()
    await mesh.done(held)


async def test_a_create_goes_where_a_slot_is_free(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> None:
    async with two_cells(valkey.url, tmp_path, slots=1, paging=Paging(on=False)) as mesh:
        models = [await mesh.opened(new_session()) for _ in range(2)]
        waiting = await mesh.create(session := new_session())
        assert await mesh.cells_of([*models, f"{session}:train:0"]) == ["0", SECOND, "0"]
        await mesh.done(await mesh.unload(models[1]))
        await mesh.done(waiting)
        assert await mesh.cell_of(f"{session}:train:0") == SECOND


async def test_a_trainer_is_never_taken_for_that_of_another_cell(mesh: TwoCells) -> None:
    await mesh.opened(new_session())
    store = mesh.replicas[0].training._driver._parts.store
    term = int(await cast("Any", mesh.redis.hget(keys.lease(POOL), "term")))
    with pytest.raises(Unavailable, match=f"is the trainer of cell {SECOND}, not of cell 0"):
        await store.adopt(POOL, term, mesh.second.incarnation, 4)
    assert await cast("Any", mesh.redis.hget(keys.cell(POOL), "incarnation")) == mesh.trainer.incarnation.encode()
    known = sorted(path.name for path in (mesh.root / "fences").iterdir())
    assert known == [POOL, f"{POOL}@{SECOND}"]


async def test_a_pool_of_one_trainer_has_the_keys_it_always_had(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        names = {name.decode() for name in await cast("Any", redis_client.keys("*"))}
        assert not [name for name in names if "@" in name or name.endswith(":cells")]
        assert await cast("Any", redis_client.hget(keys.model(POOL, model), "cell")) is None


async def test_a_second_trainer_joins_a_pool_that_has_models(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path) as mesh:
        old = await mesh.opened(new_session())
        await rounds(mesh, old, [1])
        second = FakeTrainer(tmp_path, facts=mesh.facts, cell=SECOND)
        await second.start()
        mesh.directory.others[SECOND] = second.registration()
        new = await mesh.opened(new_session())
        await rounds(mesh, old, [2])
        await rounds(mesh, new, [1, 2])
        assert await final_state(mesh, old, 5) == await final_state(mesh, new, 5)
        assert {entry["kind"] for entry in second.journal.entries} >= {"init", "pass", "optim", "save"}
        await second.stop()


async def test_a_trainer_that_comes_is_driven_at_once_and_not_at_the_next_look(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.scheduler.dispatch import cell_driver, driver

    for module in (cell_driver, driver):
        monkeypatch.setattr(module, "IDLE_SECONDS", 3_600.0)
    registry = RegistryStore(redis_client, Functions(redis_client))
    async with two_cells(valkey.url, tmp_path) as mesh:
        await mesh.kill_second()
        mesh.second = mesh._new_second()
        await mesh.start_second()
        registration = mesh.second.registration()
        await registry.renew(POOL, "trainers", registration.trainer_id, registration.incarnation, "{}", SECOND)

        async def adopted() -> bool:
            known = await cast("Any", mesh.redis.hget(keys.cell(POOL, SECOND), "incarnation"))
            return bool(known == mesh.second.incarnation.encode())

        await mesh.until(adopted)
        assert await phase(mesh, await mesh.opened(new_session())) == "live"
        with pytest.raises(StaleFence):
            await mesh.replicas[0].training._driver._parts.store.takeover_token(POOL, 0, "")
