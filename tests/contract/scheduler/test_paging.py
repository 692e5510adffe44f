"""More models live than slots exist: idle ones give way, and come back as they were."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from services.scheduler.core.seating import Paging
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import counter, fields, final_state, kill_trainer, phase, rounds
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess

QUICK = Paging(on=True, idle_ms=20, after_ms=300)
MODELS, VARIANTS, ROUNDS = 64, 8, 3


async def made(mesh: Mesh, seed: int) -> str:
    session = new_session()
    await mesh.done(await mesh.create(session, seed=seed))
    return f"{session}:train:0"


async def one_round(mesh: Mesh, model: str, number: int, variant: int) -> None:
    salt = 100_000 * variant + number
    batch = await mesh.batch(model, 2 * number - 1, [3, 4], salt=salt)
    step = await mesh.step(model, 2 * number)
    assert (await mesh.done(step)).optim_step.metrics["window_datums"] == 2
    await mesh.done(batch)


async def test_64_models_on_4_slots_each_as_if_it_were_alone(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=4, paging=QUICK) as mesh:
        solo: list[dict[str, Any]] = []
        for variant in range(VARIANTS):
            model = await made(mesh, variant)
            for number in range(1, ROUNDS + 1):
                await one_round(mesh, model, number, variant)
            solo.append(await final_state(mesh, model, 2 * ROUNDS + 1))
            await mesh.done(await mesh.unload(model))
        models = [(await made(mesh, number % VARIANTS), number % VARIANTS) for number in range(MODELS)]
        paged, began = await counter(mesh, "pages_total"), time.monotonic()
        for number in range(1, ROUNDS + 1):
            await asyncio.gather(*(one_round(mesh, model, number, variant) for model, variant in models))
        pages = await counter(mesh, "pages_total") - paged
        states = [await final_state(mesh, model, 2 * ROUNDS + 1) for model, _ in models]
        print(f"{pages} switches, {1000 * (time.monotonic() - began) / pages:.0f} ms each with the work between them")
        assert states == [solo[variant] for _, variant in models]
        assert pages >= ROUNDS * (MODELS - 4)


async def test_an_open_window_survives_being_paged_out(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        await mesh.done(await mesh.batch(model, 3, [3, 4], salt=2))
        other = await mesh.opened(new_session())
        assert await phase(mesh, model) == "unseated"
        assert (await fields(mesh, model, "base_pos", "log_end")) == [
            "2",
            "3",
        ]  # the step is covered, the window is not
        await rounds(mesh, other, [1])
        assert (await mesh.done(await mesh.step(model, 4))).optim_step.metrics["window_datums"] == 2
        twin = await mesh.opened(new_session())
        await rounds(mesh, twin, [1, 2])
        assert await final_state(mesh, model, 5) == await final_state(mesh, twin, 5)


async def test_busy_models_take_turns_in_the_end(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, unit_tokens=8, paging=QUICK) as mesh:
        mesh.trainer.faults.add("delay_after", "pass", times=0, seconds=0.02)
        busy = await mesh.opened(new_session())
        flood = [await mesh.batch(busy, seq, [3, 3, 3]) for seq in range(1, 41)]
        late = await mesh.create(new_session())
        await mesh.done(late)
        assert await mesh.state(flood[-1]) != "done"
        for request in flood:
            await mesh.done(request)
        assert (await mesh.done(await mesh.step(busy, 41))).optim_step.metrics["window_datums"] == 120


async def test_a_trainer_lost_while_models_are_paged_out_brings_all_of_them_back(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    limits = RecoveryLimits(durable_every_steps=2)
    async with running_mesh(valkey.url, tmp_path, slots=2, paging=QUICK, recovery=limits) as mesh:
        models = [await mesh.opened(new_session()) for _ in range(6)]
        for number in (1, 2):
            await asyncio.gather(*(rounds(mesh, model, [number]) for model in models))
        await kill_trainer(mesh)
        await asyncio.gather(*(rounds(mesh, model, [3]) for model in models))
        states = [await final_state(mesh, model, 7) for model in models]
        assert states == states[:1] * 6


async def test_a_paged_out_model_is_unloaded_without_a_slot(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        await mesh.opened(new_session())
        assert await phase(mesh, model) == "unseated"
        assert (await mesh.replicas[0].training.models.queue_state(POOL, model, 9))[0] == "paused_capacity"
        await mesh.done(await mesh.unload(model))

        async def files_gone() -> bool:
            return not list((tmp_path / "durable" / POOL).glob("*"))

        await mesh.until(files_gone)


async def test_with_paging_off_a_create_waits_IDEM_12(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=Paging(on=False)) as mesh:
        model = await mesh.opened(new_session())
        session = new_session()
        create = await mesh.create(session)
        await asyncio.sleep(0.5)
        assert await mesh.state(create) == "queued"
        state, reason = await mesh.replicas[0].training.models.queue_state(POOL, f"{session}:train:0", 0)
        assert (state, "every adapter slot is taken" in reason) == ("paused_capacity", True)
        await mesh.done(await mesh.unload(model))
        await mesh.done(create)


async def test_a_model_whose_durable_point_failed_is_left_alone_for_a_while(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=2, paging=QUICK) as mesh:
        first, second = [await mesh.opened(new_session()) for _ in range(2)]
        await rounds(mesh, first, [1])
        await mesh.done(await mesh.batch(second, 1, [3]))
        await mesh.done(await mesh.step(second, 2))
        mesh.trainer.faults.add("fail", "publish")
        await mesh.opened(new_session())
        assert [await phase(mesh, model) for model in (first, second)] == ["live", "unseated"]
        late = await mesh.create(new_session())  # one of two slots is the new model's, which has nothing to save
        await mesh.done(late)
        assert await phase(mesh, first) == "live"
        assert await counter(mesh, "durable_failures_total") == 1


async def test_a_store_that_takes_no_durable_point_is_not_asked_at_every_turn(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        mesh.trainer.faults.add("fail", "publish", times=0)
        waiting = await mesh.create(new_session())

        async def failed() -> bool:
            return await counter(mesh, "durable_failures_total") > 0

        await mesh.until(failed)
        await asyncio.sleep(0.6)
        assert await counter(mesh, "durable_failures_total") == 1
        assert await mesh.state(waiting) == "queued"
        await rounds(mesh, model, [2])


async def test_a_model_whose_save_is_being_written_keeps_its_slot_until_then(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
        save = await mesh.save(model, 1, "slow")
        create = await mesh.create(new_session())
        await asyncio.sleep(0.4)
        assert await counter(mesh, "pages_total") == 0
        mesh.trainer.faults.remove(hold)
        await mesh.done(save)
        await mesh.done(create)
        assert await counter(mesh, "pages_total") == 1
