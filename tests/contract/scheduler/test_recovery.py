"""A trainer dies at any moment: its models come back as they were, their futures stay pending, nothing runs twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.scheduler.store import keys
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
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, Replica, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.contract.scheduler.test_training_saves import create_from
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import POOL, FakeTrainer
from tests.doubles.valkey import ValkeyProcess

NEVER = RecoveryLimits(durable_every_steps=1_000)


async def test_killed_between_forward_backward_and_optim_step_the_window_is_replayed_GAP_02_GAP_11(mesh: Mesh) -> None:
    calm = await undisturbed(mesh, [1, 2, 3])
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1, 2])
    await mesh.done(await mesh.batch(model, 5, [3, 4], salt=3))
    await kill_trainer(mesh)
    assert (await mesh.done(await mesh.step(model, 6))).optim_step.metrics["window_datums"] == 2
    assert await final_state(mesh, model, 7) == calm
    assert [len(entry["datums"]) for entry in replays(mesh.trainer) if entry["slots"] == [1]] == [2, 2, 2]


async def test_a_dead_trainers_slots_are_given_up_together_and_none_is_unloaded_FAIL_07(mesh: Mesh) -> None:
    """Its successor begins with empty slots: an unload there would hit whoever sits in that slot by then."""
    calm = await undisturbed(mesh, [1, 2])
    models = [await mesh.opened(new_session()) for _ in range(3)]
    for model in models:
        await rounds(mesh, model, [1])
    await mesh.done(await mesh.unload(models[2]))
    mesh.trainer.faults.add("hold_before", "optim", times=0)
    steps = []
    for model in models[:2]:
        await mesh.batch(model, 3, [3, 4], salt=2)
        steps.append(await mesh.step(model, 4))
    await mesh.until(lambda: busy(mesh))
    before = unloads(mesh.trainer)
    old = await kill_trainer(mesh)
    for step in steps:
        await mesh.done(step)
    assert [await final_state(mesh, model, 5) for model in models[:2]] == [calm, calm]
    assert unloads(old) == before != []
    assert unloads(mesh.trainer) == []


def unloads(trainer: FakeTrainer) -> list[dict[str, Any]]:
    return [entry for entry in trainer.journal.entries if entry["kind"] == "unload"]


async def test_killed_inside_a_unit_the_command_runs_again_FAIL_14(mesh: Mesh) -> None:
    calm = await undisturbed(mesh, [1, 2])
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    for kind, make in (("pass", mesh.batch(model, 3, [3, 4], salt=2)), ("optim", mesh.step(model, 4))):
        hold = mesh.trainer.faults.add("hold_before", kind, times=0)
        request = await make
        await mesh.until(lambda: busy(mesh))
        old = await kill_trainer(mesh)
        await mesh.done(request)
        old.faults.remove(hold)
    assert await final_state(mesh, model, 5) == calm


async def test_killed_during_the_replay_it_begins_again(mesh: Mesh) -> None:
    calm = await undisturbed(mesh, [1, 2, 3])
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1, 2])
    await mesh.trainer.stop()
    mesh.trainer = type(mesh.trainer)(mesh.root, facts=mesh.facts)
    hold = mesh.trainer.faults.add("hold_before", "optim", times=0)
    await mesh.start_trainer()
    pending = await mesh.batch(model, 5, [3, 4], salt=3)
    await mesh.until(lambda: busy(mesh))
    state, reason = await mesh.replicas[0].training.models.queue_state(POOL, model, 5)
    assert (state, reason) == ("paused_capacity", "recovering: 1 of 4 logged commands replayed")
    old = await kill_trainer(mesh)
    await mesh.done(pending)
    old.faults.remove(hold)
    await mesh.done(await mesh.step(model, 6))
    assert await final_state(mesh, model, 7) == calm
    assert await fields(mesh, model, "replay_deaths") == ["0"]


async def test_a_create_from_a_checkpoint_and_a_load_come_back(mesh: Mesh) -> None:
    source = await mesh.opened(new_session())
    await rounds(mesh, source, [1])
    path = (await mesh.done(await mesh.save(source, 3, "start"))).save.path
    await mesh.done(await mesh.batch(source, 4, [3, 4], salt=2))
    await mesh.done(await mesh.step(source, 5))
    calm = await final_state(mesh, source, 6)
    await mesh.done(await mesh.command(source, 7, load_weights={"path": path, "optimizer": True}))
    loaded = (await mesh.done(await create_from(mesh, path))).model.model_id
    await mesh.done(await mesh.batch(loaded, 1, [3, 4], salt=3002))
    await mesh.done(await mesh.batch(source, 8, [3, 4], salt=-3998))
    await kill_trainer(mesh)
    await mesh.done(await mesh.step(source, 9))
    await mesh.done(await mesh.step(loaded, 2))
    assert await final_state(mesh, source, 10) == calm
    assert await final_state(mesh, loaded, 3) == calm


async def test_a_captured_save_is_run_again_by_the_replay_and_its_future_stays_pending(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
    save, snapshot = await mesh.save(model, 3, "kept"), await mesh.command(model, 4, save_for_sampler={})

    async def captured() -> bool:
        return [await mesh.state(key) for key in (save, snapshot)] == ["captured", "captured"]

    await mesh.until(captured)
    await rounds(mesh, model, [3])
    old = await kill_trainer(mesh)
    assert (await mesh.done(save)).save.path.endswith("weights/kept")
    assert (await mesh.done(snapshot)).save.path.endswith("sampler_weights/1")
    old.faults.remove(hold)
    await live(mesh, model)
    assert (await final_state(mesh, model, 7))["step"] == 2


async def test_a_durable_point_covers_the_log_and_frees_its_payloads(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=2)) as mesh:
        calm = await undisturbed(mesh, [1, 2, 3, 4, 5])
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1, 2, 3, 4])

        async def covered() -> bool:
            return (await fields(mesh, model, "base_pos", "log_end"))[0] == "8"

        await mesh.until(covered)
        await mesh.done(await mesh.batch(model, 9, [3, 4], salt=5))
        assert await log_length(mesh, model) == 1
        payloads = [name async for name in redis_client.scan_iter(match="tm:{p:double}:pay:*")]
        assert len(payloads) == 1 + await log_length_of_others(mesh, model)
        await kill_trainer(mesh)
        await mesh.done(await mesh.step(model, 10))
        assert await final_state(mesh, model, 11) == calm
        mine = [entry for entry in replays(mesh.trainer) if len(entry["datums"]) == 2]
        assert len(mine) <= 2, mine

        async def one_version() -> bool:
            folder = tmp_path / "durable" / POOL / model
            return len([entry for entry in folder.iterdir() if not entry.is_symlink()]) == 1

        await mesh.until(one_version)


async def log_length_of_others(mesh: Mesh, model: str) -> int:
    """Payloads that the logs of other models keep."""
    kept = 0
    for name in [name async for name in mesh.redis.scan_iter(match="tm:{p:double}:log:*")]:
        if not name.decode().endswith(model):
            entries = await cast("Any", mesh.redis.lrange(name, 0, -1))
            kept += sum(b'"forward_backward"' in entry for entry in entries)
    return kept


async def test_a_death_during_the_capture_of_a_durable_point_costs_nothing(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=2)) as mesh:
        model = await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
        await rounds(mesh, model, [1, 2, 3])

        async def capturing() -> bool:
            return bool(await cast("Any", redis_client.hexists(keys.durables_running(POOL), model)))

        await mesh.until(capturing)
        old = await kill_trainer(mesh)
        await rounds(mesh, model, [4])
        old.faults.remove(hold)
        state = await final_state(mesh, model, 9)
        assert state == await undisturbed(mesh, [1, 2, 3, 4])


async def test_a_durable_point_waits_for_the_saves_it_would_cover(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=2)) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])
        hold = mesh.trainer.faults.add("hold_before", "publish")  # the save; the durable point is free
        save = await mesh.save(model, 3, "early")
        await mesh.done(await mesh.batch(model, 4, [3]))
        await mesh.done(await mesh.step(model, 5))

        async def written() -> bool:
            folder = tmp_path / "durable" / POOL / model
            return folder.is_dir() and any(entry.is_symlink() for entry in folder.iterdir())

        await mesh.until(written)
        assert (await fields(mesh, model, "base_pos")) == ["0"]
        old = await kill_trainer(mesh)
        assert (await mesh.done(save)).save.path.endswith("weights/early")
        old.faults.remove(hold)


async def test_a_failed_durable_point_alarms_and_training_goes_on(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=1)) as mesh:
        mesh.trainer.faults.add("fail", "publish")
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1, 2])

        async def told() -> bool:
            return await counter(mesh, "durable_failures_total") == 1

        await mesh.until(told)
        assert await log_length(mesh, model) == 4
        await kill_trainer(mesh)
        await rounds(mesh, model, [3])


async def test_failed_rejected_and_skipped_commands_are_not_replayed_as_effects_ADD_05(mesh: Mesh) -> None:
    async def job(model: str) -> None:
        await mesh.done(await mesh.batch(model, 1, [3, 4]))
        await mesh.failed(await mesh.batch(model, 2, [5], rejected="datum 0: is bad"))
        await mesh.done(await mesh.step(model, 3))
        await mesh.done(await mesh.batch(model, 4, [6]))
        skip = mesh.trainer.faults.add("skip_step", "optim")
        assert "skipped_nonfinite" in (await mesh.done(await mesh.step(model, 5))).optim_step.metrics
        mesh.trainer.faults.remove(skip)
        await mesh.done(await mesh.batch(model, 6, [7, 8]))
        await mesh.done(await mesh.batch(model, 7, [9], backward=False))

    calm_model, model = await mesh.opened(new_session()), await mesh.opened(new_session())
    await job(calm_model)
    calm_step = await mesh.done(await mesh.step(calm_model, 8))
    calm = await final_state(mesh, calm_model, 9)
    await job(model)
    old = await kill_trainer(mesh)
    assert (await mesh.done(await mesh.step(model, 8))) == calm_step
    assert await final_state(mesh, model, 9) == calm
    assert old.journal.entries
    assert not [e for e in replays(mesh.trainer) if not e["backward"]]


async def test_units_are_formed_again_as_they_were_logged(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=8) as mesh:
        models = [await mesh.opened(new_session(), tenant=f"tenant-{n}") for n in range(3)]
        for round_ in (1, 2):
            async with held(mesh):
                batches = [
                    await mesh.batch(m, 2 * round_ - 1, [3, 4], tenant=f"tenant-{n}") for n, m in enumerate(models)
                ]
            for request in batches:
                await mesh.done(request)
            for request in [await mesh.step(m, 2 * round_, tenant=f"tenant-{n}") for n, m in enumerate(models)]:
                await mesh.done(request)
        before = [entry["datums"] for entry in mesh.passes() if entry["backward"]]
        assert max(len({request for request, _ in datums}) for datums in before) == 3
        await kill_trainer(mesh)
        await live(mesh, *models)
        assert [entry["datums"] for entry in replays(mesh.trainer)] == before


async def test_nothing_is_replayed_twice_by_two_leaders(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, replicas=2, lease_ttl_ms=1000) as mesh:
        calm = await undisturbed(mesh, range(1, 13))
        model = await mesh.opened(new_session())
        await rounds(mesh, model, range(1, 12))
        await mesh.trainer.stop()
        mesh.trainer = type(mesh.trainer)(mesh.root, facts=mesh.facts)
        mesh.trainer.faults.add("delay_after", "", times=0, seconds=0.05)
        await mesh.start_trainer()
        for number in range(2):

            async def replaying() -> bool:
                return await phase(mesh, model) == "replaying"

            async def led() -> list[Replica]:
                leader = await cast("Any", redis_client.hget("tm:{p:double}:lease", "replica"))
                return [r for r in mesh.replicas if r.training._leadership._replica.encode() == leader]

            await mesh.until(replaying)
            (dead,) = await eventually(led)
            mesh.replicas.remove(dead)
            await dead.kill()
            await mesh.add_replica(f"successor{number}")
        await rounds(mesh, model, [12])
        assert await final_state(mesh, model, 25) == calm
        units = [entry["unit_id"] for entry in mesh.trainer.journal.entries]
        assert len(units) == len(set(units))


async def test_adopting_twice_changes_nothing(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    store = mesh.replicas[0].training._driver._parts.store
    term = int(await cast("Any", mesh.redis.hget(keys.lease(POOL), "term")))
    assert await store.adopt(POOL, term, mesh.trainer.incarnation, 4, NEVER) == 0
    assert await phase(mesh, model) == "live"
    await rounds(mesh, model, [2])


@pytest.mark.parametrize("where", ["unload", "session"])
async def test_an_unseated_model_ends_in_order(mesh: Mesh, where: str) -> None:
    session = new_session()
    model = await mesh.opened(session)
    await rounds(mesh, model, [1])
    registration = mesh.directory.registration
    await mesh.trainer.stop()
    mesh.directory.registration = None
    batch, step = await mesh.batch(model, 3, [3]), await mesh.step(model, 4)
    over = await mesh.unload(model) if where == "unload" else ""
    if where == "session":
        await mesh.replicas[0].training.models.close_session(POOL, session, "finished", settle_accepted=True)
    mesh.trainer = type(mesh.trainer)(mesh.root, facts=mesh.facts)
    await mesh.start_trainer()
    assert mesh.directory.registration != registration
    assert (await mesh.done(step)).optim_step.metrics["window_datums"] == 1
    await mesh.done(batch)
    if over:
        await mesh.done(over)

    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)
    assert await log_length(mesh, model) == 0
