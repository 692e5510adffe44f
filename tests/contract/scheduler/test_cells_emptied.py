"""Models leave a trainer that is drained, or that does not come back, and are what they were (GAP-17)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.errors import StaleFence, Unavailable
from services.scheduler.store import keys
from services.scheduler.store.cells import CellStore
from services.scheduler.store.functions import Functions
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import counter, final_state, replays, rounds, undisturbed
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.test_cells import busy
from tests.contract.scheduler.two_cells import SECOND, TwoCells, two_cells
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess

SOON = RecoveryLimits(cell_lost_ms=300)


async def work_on_both(mesh: TwoCells) -> list[str]:
    """Six models with two rounds each, one of the second cell with an open window."""
    models = await mesh.six()
    await asyncio.gather(*(rounds(mesh, model, [1, 2]) for model in models))
    await mesh.done(await mesh.batch(models[3], 5, [3, 4], salt=3))
    return models


async def third_round(mesh: TwoCells, models: list[str]) -> None:
    """The rest of what `undisturbed` does; the first of the second cell has its batch."""
    await mesh.done(await mesh.step(models[3], 6))
    await asyncio.gather(*(rounds(mesh, model, [3]) for model in [*models[:3], *models[4:]]))


async def test_models_of_a_trainer_that_does_not_come_back_go_on_at_the_other_GAP_17(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = await work_on_both(mesh)
        hold = mesh.second.faults.add("hold_before", "pass", times=0)
        running = await mesh.batch(models[4], 5, [3, 4], salt=3)
        await mesh.until(lambda: busy(mesh.second))
        zombie = mesh.silence_second()
        await mesh.done(running)  # at the other one: the zombie is still at it
        await mesh.done(await mesh.step(models[3], 6))
        await mesh.done(await mesh.step(models[4], 6))
        await asyncio.gather(*(rounds(mesh, model, [3]) for model in [*models[:3], models[5]]))
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 6
        assert set(await mesh.cells_of(models)) == {"0"}
        assert await mesh.held(SECOND) == set()
        assert await counter(mesh, "moved_total") == 3 + (await mesh.cell_of(models[0]) != "0")
        zombie.faults.remove(hold)

        registry = RegistryStore(redis_client, Functions(redis_client))
        with pytest.raises(StaleFence, match="was superseded by another one"):
            await registry.renew(POOL, "trainers", zombie.trainer_id, zombie.incarnation, "{}", SECOND)


async def test_what_a_lost_trainer_was_writing_is_published_by_the_other_and_never_by_itself_GAP_03_GAP_17(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        models = await work_on_both(mesh)
        hold = mesh.second.faults.add("hold_before", "publish", times=0)
        save = await mesh.save(models[4], 5, "kept")
        await mesh.until(lambda: _captured(mesh, save))
        zombie = mesh.silence_second()
        path = (await mesh.done(save)).save.path
        assert await mesh.cell_of(models[4]) == "0"
        before = sorted(str(found) for found in (mesh.root / "runs").rglob("*"))
        zombie.faults.remove(hold)
        await asyncio.wait_for(zombie.superseded.wait(), 60)
        assert sorted(str(found) for found in (mesh.root / "runs").rglob("*")) == before
        assert path.endswith("/kept")


async def _captured(mesh: TwoCells, request: str) -> bool:
    return await mesh.state(request) == "captured"


async def test_a_lost_trainer_takes_nothing_while_the_store_cannot_be_fenced(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        models = await work_on_both(mesh)
        fences = mesh.replicas[0].training._driver._parts.fences
        tried = asyncio.Event()

        async def away(self: object, pool: str, cell: str, token: int) -> None:
            tried.set()
            raise Unavailable("the shared store cannot be used now")

        with monkeypatch.context() as patched:
            patched.setattr(type(fences), "close", away)
            await mesh.kill_second()
            await asyncio.wait_for(tried.wait(), 60)
            await rounds(mesh, models[0], [3])
            assert await mesh.cells_of(models[3:]) == [SECOND] * 3
            assert await mesh.held(SECOND) == set(models[3:])
        await mesh.live_at(models[3:], "0")


async def test_a_leader_that_dies_while_it_gives_a_trainer_up_is_followed_GAP_17(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON, lease_ttl_ms=2_000) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = await work_on_both(mesh)
        for step in ("lose", "move"):
            reached = asyncio.Event()
            with monkeypatch.context() as patched:
                patched.setattr(CellStore, step, _stuck(reached))
                if step == "lose":
                    await mesh.kill_second()
                await asyncio.wait_for(reached.wait(), 60)
                await mesh.replicas[0].kill()
            mesh.replicas.clear()
            await mesh.add_replica(f"after-{step}")
        await third_round(mesh, models)
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 6
        assert set(await mesh.cells_of(models)) == {"0"}


def _stuck(reached: asyncio.Event) -> Any:
    async def stuck(*arguments: object) -> int:
        reached.set()
        await asyncio.Event().wait()
        return 0

    return stuck


async def test_a_lost_trainer_that_returns_is_an_empty_one(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        models = await work_on_both(mesh)
        await mesh.kill_second()
        await mesh.live_at(models[3:], "0")
        await mesh.next_second()
        new = await mesh.opened(new_session())
        assert await mesh.cell_of(new) == SECOND
        await rounds(mesh, new, [1])
        await third_round(mesh, models)
        assert await mesh.held(SECOND) == {new}


async def test_without_another_trainer_nothing_is_given_up(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, recovery=SOON) as mesh:
        models = await mesh.six()
        await mesh.kill_second()
        await mesh.trainer.stop()
        mesh.directory.registration = None
        looks = 0

        async def seen(pool: str) -> dict[str, Any]:
            nonlocal looks
            looks += 1
            return await type(mesh.directory).cells(mesh.directory, pool)

        mesh.directory.cells = seen  # type: ignore[method-assign]
        await mesh.until(
            lambda: looks > 6
        )  # both have looked more than once, and a look is further apart than the limit
        assert await mesh.held(SECOND) == set(models[3:])
        assert await counter(mesh, "trainers_lost_total") == 0


# ---- drains --------------------------------------------------------------------------------


async def test_a_drained_trainer_is_emptied_and_nothing_is_replayed_but_open_windows_GAP_17(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = await work_on_both(mesh)
        await mesh.drain_second()
        await mesh.moved(models[3:], "0")
        await third_round(mesh, models)
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 6
        assert [len(entry["datums"]) for entry in replays(mesh.trainer)] == [2]  # the window
        assert replays(mesh.trainer, "optim") == []
        assert await mesh.held(SECOND) == set()
        assert [slot.held for slot in mesh.second.runner.slots] == [None] * 8
        assert await counter(mesh, "trainers_lost_total") == 0

        mesh.directory.drained.clear()
        new = await mesh.opened(new_session())
        assert await mesh.cell_of(new) == SECOND


async def test_a_drain_waits_for_the_running_unit_and_for_what_is_being_written(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8) as mesh:
        models = await work_on_both(mesh)
        write = mesh.second.faults.add("hold_before", "publish", times=0)
        save = await mesh.save(models[4], 5, "kept")
        await mesh.until(lambda: _captured(mesh, save))
        hold = mesh.second.faults.add("hold_before", "pass", times=0)
        running = await mesh.batch(models[5], 5, [3, 4], salt=3)
        await mesh.until(lambda: busy(mesh.second))
        await mesh.drain_second()
        mesh.second.faults.remove(hold)
        await mesh.done(running)
        passes = [entry for entry in mesh.second.journal.entries if entry["kind"] == "pass"]
        assert [entry.get("replay", False) for entry in passes] == [False] * len(passes)
        await mesh.until(lambda: _wants_to_write(mesh))
        assert await mesh.cell_of(models[4]) == SECOND
        mesh.second.faults.remove(write)
        await mesh.done(save)
        await mesh.moved(models[3:], "0")
        await third_round(mesh, [*models[:3], models[3]])
        await mesh.done(await mesh.step(models[5], 6))


async def _wants_to_write(mesh: TwoCells) -> bool:
    """A durable point of a model that leaves is captured."""
    return bool(await cast("Any", mesh.redis.hlen(keys.durables_running(POOL))))


async def test_a_drained_trainer_that_dies_is_given_up_too(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = await work_on_both(mesh)
        write = mesh.second.faults.add("hold_before", "publish", times=0)
        await mesh.drain_second()
        await mesh.until(lambda: _wants_to_write(mesh))
        await mesh.kill_second()
        mesh.second.faults.remove(write)
        await mesh.moved(models[3:], "0")
        await third_round(mesh, models)
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 6


async def test_a_drained_trainer_that_cannot_make_durable_points_is_emptied_all_the_same(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = await work_on_both(mesh)
        mesh.second.faults.add("fail", "save", times=0)
        await mesh.drain_second()
        await mesh.moved(models[3:], "0")
        await third_round(mesh, models)
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 6
        assert replays(mesh.trainer, "optim") != []


async def test_new_models_do_not_go_to_a_drained_trainer(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path) as mesh:
        await mesh.drain_second()
        models = [await mesh.opened(new_session()) for _ in range(3)]
        assert await mesh.cells_of(models) == ["0", "0", "0"]


async def test_a_cell_without_models_and_trainers_is_forgotten(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with two_cells(valkey.url, tmp_path, slots=8, recovery=SOON) as mesh:
        models = await mesh.six()
        cells = mesh.replicas[0].training._driver._parts.cells
        term = int(await cast("Any", mesh.redis.hget(keys.lease(POOL), "term")))
        assert not await cells.forget(POOL, term, SECOND)
        await mesh.kill_second()
        await mesh.moved(models[3:], "0")
        del mesh.directory.others[SECOND]
        await mesh.until(lambda: cells.forget(POOL, term, SECOND))
        left = {name.decode() for name in await cast("Any", redis_client.keys("*@*"))}
        assert left == set()
        assert await cells.known(POOL) == ["0"]
        assert not await cells.forget(POOL, term, "0")
