"""Deaths while models change places: slots that are fewer, being emptied, or waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import Redis

from services.scheduler.core.seating import Paging
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import (
    busy,
    final_state,
    kill_trainer,
    next_trainer,
    rounds,
    settled_durables,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.fake_trainer import trainer_facts
from tests.doubles.valkey import ValkeyProcess

QUICK = Paging(on=True, idle_ms=20, after_ms=300)


async def test_models_that_shared_units_come_back_on_one_slot_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """The companion of a logged unit has no slot: the replay does not wait for it for ever."""
    never = RecoveryLimits(durable_every_steps=1000)
    async with running_mesh(valkey.url, tmp_path, slots=4, paging=QUICK, recovery=never) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3])
        models = [await mesh.opened(new_session()) for _ in range(3)]
        for number in (1, 2):
            async with held(mesh):
                batches = [await mesh.batch(model, 2 * number - 1, [3, 4], salt=number) for model in models]
            for batch in batches:
                await mesh.done(batch)
            for model in models:
                await mesh.done(await mesh.step(model, 2 * number))
        mesh.facts = trainer_facts(slots=1, unit_tokens=4096)
        await kill_trainer(mesh)
        await asyncio.gather(*(rounds(mesh, model, [3]) for model in models))
        assert [await final_state(mesh, model, 7) for model in models] == [calm] * 3


async def test_a_new_leader_and_a_new_trainer_find_a_model_that_waits_to_be_seated_again_FAIL_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    each = RecoveryLimits(durable_every_steps=1)
    async with running_mesh(valkey.url, tmp_path, lease_ttl_ms=1000, recovery=each) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        await settled_durables(mesh)
        await next_trainer(mesh, ("fail", "load"))
        step = await mesh.step(model, 3)
        await asyncio.sleep(0.5)
        await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")
        await next_trainer(mesh)
        await mesh.done(step)


async def test_a_death_while_a_slot_is_emptied_for_another_costs_neither_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        await mesh.done(await mesh.batch(model, 1, [3, 4], salt=1))
        hold = mesh.trainer.faults.add("hold_before", "unload", times=0)
        create = await mesh.create(new_session())
        await mesh.until(lambda: busy(mesh))
        step = await mesh.step(model, 2)
        old = await kill_trainer(mesh)
        old.faults.remove(hold)
        await mesh.done(create)
        await mesh.done(step)
        assert await final_state(mesh, model, 3) == await undisturbed(mesh, [1])


async def test_a_slot_that_cannot_be_emptied_for_another_harms_nobody_FAIL_05_GAP_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """It stays out of use; the other one is shared by three."""
    async with running_mesh(valkey.url, tmp_path, slots=2, paging=QUICK) as mesh:
        models = [await mesh.opened(new_session()) for _ in range(2)]
        mesh.trainer.faults.add("fail", "unload")
        models.append(await mesh.opened(new_session()))
        for model in models:
            await rounds(mesh, model, [1])
        assert [holder.partition(":")[0] for holder in (await mesh.slots()).values()].count("quarantine") == 1
