"""Retries, halves of requests and unpublished saves across a death: each effect once, each future one answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from services.scheduler.core.seating import Paging
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
    rounds,
    undisturbed,
)
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.valkey import ValkeyProcess

QUICK = Paging(on=True, idle_ms=20, after_ms=300)


async def test_retries_after_a_recovery_find_the_first_answer_and_run_nothing_GAP_02_GAP_03(mesh: Mesh) -> None:
    """Before the death, while unseated, and when it is over."""
    session = new_session()
    model = await mesh.opened(session)

    async def send() -> list[str]:
        batch, step = await mesh.batch(model, 1, [3, 4]), await mesh.step(model, 2)
        return [await mesh.create(session), batch, step, await mesh.save(model, 3, "kept")]

    first = await send()
    answers = [await mesh.done(request) for request in first]
    await mesh.trainer.stop()
    mesh.directory.registration = None
    assert await send() == first
    await kill_trainer(mesh)
    assert await send() == first
    await mesh.done(await mesh.batch(model, 4))
    assert await send() == first
    assert [await mesh.done(request) for request in first] == answers
    anew = [entry for entry in mesh.trainer.journal.entries if not entry.get("replay")]
    assert [entry["kind"] for entry in anew] == ["pass"]
    assert len(list((mesh.root / f"runs/{model}/weights").glob("_version_*"))) == 1


async def test_of_a_request_in_two_units_the_second_half_runs_once_more_and_the_first_is_replayed_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=9) as mesh:

        async def job(model: str, *, dies: bool) -> object:
            hold = mesh.trainer.faults.add("hold_before", "pass", skip=1, times=0) if dies else None
            batch = await mesh.batch(model, 1, [3, 3, 3, 3, 3, 3], salt=1)
            step = await mesh.step(model, 2)
            if hold is not None:

                async def half() -> bool:
                    units = [entry for entry in mesh.passes() if entry["backward"]]
                    return len(units) - before == 1 and bool(mesh.trainer.book.running_unit)

                await mesh.until(half)
                old = await kill_trainer(mesh)
                old.faults.remove(hold)
            found = await mesh.done(batch)
            assert (await mesh.done(step)).optim_step.metrics["window_datums"] == 6
            return found.batch

        calm_model = await mesh.opened(new_session())
        calm = await job(calm_model, dies=False)
        before = len([entry for entry in mesh.passes() if entry["backward"]])
        model = await mesh.opened(new_session())
        assert await job(model, dies=True) == calm
        assert await final_state(mesh, model, 3) == await final_state(mesh, calm_model, 3)


async def test_a_save_that_is_being_written_keeps_its_slot_and_outlives_a_death_GAP_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Another model waits for the slot: it gets it when the save is published, by the next trainer."""
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        model = await mesh.opened(new_session())
        await mesh.done(await mesh.batch(model, 1, [3, 4], salt=1))
        hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
        save = await mesh.save(model, 2, "kept")

        async def captured() -> bool:
            return await mesh.state(save) == "captured"

        await mesh.until(captured)
        other = await mesh.create(new_session())
        await asyncio.sleep(0.3)
        assert await phase(mesh, model) == "live"
        old = await kill_trainer(mesh)
        assert (await mesh.done(save)).save.path.endswith("weights/kept")
        old.faults.remove(hold)
        made = (await mesh.done(other)).model.model_id
        await mesh.done(await mesh.step(model, 3))
        await rounds(mesh, made, [1])


@pytest.mark.parametrize("end", ["unload", "lease"])
async def test_a_save_that_waits_for_its_replay_when_its_model_ends_has_an_answer_FAIL_14(mesh: Mesh, end: str) -> None:
    """An ordered end waits for it; a lease that ran out tells it the end."""
    session = new_session()
    model = await mesh.opened(session)
    hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
    save = await mesh.save(model, 1, "kept")

    async def captured() -> bool:
        return await mesh.state(save) == "captured"

    await mesh.until(captured)
    old, mesh.directory.registration = mesh.trainer, None
    await mesh.trainer.stop()
    unload = await mesh.unload(model) if end == "unload" else ""
    await kill_trainer(mesh)
    old.faults.remove(hold)
    if unload:
        await mesh.done(save)
        await mesh.done(unload)
        return
    hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
    await mesh.replicas[0].training.models.close_session("double", session, "lease expired", settle_accepted=False)
    mesh.trainer.faults.remove(hold)
    await mesh.settled(save)


async def test_a_death_at_every_step_of_a_job_changes_nothing_GAP_02_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Between any two commands, with durable points under way: five lives for five rounds."""
    async with running_mesh(valkey.url, tmp_path, recovery=RecoveryLimits(durable_every_steps=2)) as mesh:
        calm = await undisturbed(mesh, range(1, 6))
        model = await mesh.opened(new_session())
        for number in range(1, 6):
            await mesh.done(await mesh.batch(model, 2 * number - 1, [3, 4], salt=number))
            if number % 2:
                await kill_trainer(mesh)
            await mesh.done(await mesh.step(model, 2 * number))
            if not number % 2:
                await kill_trainer(mesh)
        assert await final_state(mesh, model, 11) == calm
        assert await counter(mesh, "trainers_lost_total") == 5
        await live(mesh, model)
        # A capture that a death struck is put off: then, and only then, the log may still begin where it did.
        covered = int((await fields(mesh, model, "steps_since"))[0]) < 5
        assert covered or await counter(mesh, "durable_failures_total") > 0


async def test_two_deaths_in_the_middle_of_one_shared_pass_end_only_whom_it_kills_MESH_04(mesh: Mesh) -> None:
    """Company at the first death is not company at the second: each runs alone from then on."""
    models = [await mesh.opened(new_session(), tenant=f"tenant-{n}") for n in range(3)]
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    first = await mesh.batch(models[0], 1, [66], tenant="tenant-0", backward=False)
    await mesh.until(lambda: busy(mesh))
    rest = [await mesh.batch(model, 1, tenant=f"tenant-{n + 1}") for n, model in enumerate(models[1:])]
    for number in range(2):
        old = await kill_trainer(mesh)
        old.faults.remove(hold)
        if number == 0:
            hold = mesh.trainer.faults.add("hold_before", "pass", times=0, length=66)
            await mesh.until(lambda rule=hold: bool(rule.seen))
    await mesh.failed(first)
    for request in rest:
        await mesh.done(request)


async def test_an_ordered_end_waits_for_a_model_that_waits_for_its_slot_FAIL_14_ADD_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """Paged out, its window in the log, commands accepted, its session finished, and then the trainer dies."""
    async with running_mesh(valkey.url, tmp_path, slots=1, paging=QUICK) as mesh:
        session = new_session()
        model = await mesh.opened(session)
        await mesh.done(await mesh.batch(model, 1, [3, 4]))
        other = await mesh.opened(new_session())
        assert await phase(mesh, model) == "unseated"
        hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
        running = await mesh.batch(other, 1)
        await mesh.until(lambda: busy(mesh))
        work = [await mesh.step(model, 2), await mesh.save(model, 3, "kept")]
        await mesh.replicas[0].training.models.close_session("double", session, "finished", settle_accepted=True)
        old = await kill_trainer(mesh)
        old.faults.remove(hold)
        for request in (running, *work):
            await mesh.done(request)

        async def gone() -> bool:
            return model not in "".join((await mesh.slots()).values()) and await phase(mesh, model) == ""

        await mesh.until(gone)
        assert await log_length(mesh, model) == 0


async def test_an_optimizer_step_that_closed_its_model_is_not_replayed_into_others_ADD_05_GAP_03(mesh: Mesh) -> None:
    """A merged step whose one slot failed: the failed one leaves no entry, the other's is replayed alone."""
    calm = await undisturbed(mesh, [1, 2])
    good, bad = [await mesh.opened(new_session()) for _ in range(2)]
    for model in (good, bad):
        await mesh.done(await mesh.batch(model, 1, [3, 4], salt=1))
    mesh.trainer.faults.add("fail", "optim", times=2)  # the merged one and the first alone; the second succeeds
    async with held(mesh):
        steps = [await mesh.step(model, 2) for model in (good, bad)]
    outcomes = [(await mesh.settled(step)).WhichOneof("outcome") for step in steps]
    assert sorted(outcomes) == ["failure", "optim_step"], outcomes
    survivor = (good, bad)[outcomes.index("optim_step")]
    await kill_trainer(mesh)
    await rounds(mesh, survivor, [2])
    assert await final_state(mesh, survivor, 5) == calm


async def test_a_model_without_any_command_comes_back_too_and_gets_its_first_GAP_02(mesh: Mesh) -> None:
    models = [await mesh.opened(new_session()) for _ in range(3)]
    for _ in range(3):
        await kill_trainer(mesh)
    await live(mesh, *models)
    for model in models:
        await rounds(mesh, model, [1])
    assert [entry["kind"] for entry in mesh.trainer.journal.entries].count("init") == 3


async def test_log_bytes_and_payloads_are_given_back_whatever_ended_the_model_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    """By unload, lease, poison or divergence: no payload, no count of one is left."""
    async with running_mesh(valkey.url, tmp_path) as mesh:
        sessions = [new_session() for _ in range(3)]
        unloaded, expired, broken = [await mesh.opened(session) for session in sessions]
        for model in (unloaded, expired, broken):
            await mesh.done(await mesh.batch(model, 1, [3, 4]))
        assert await counter(mesh, "log_bytes") > 0
        mesh.trainer.faults.add("fail", "optim", times=2)
        await mesh.failed(await mesh.step(broken, 2))
        await kill_trainer(mesh)
        await mesh.done(await mesh.unload(unloaded))
        await mesh.replicas[0].training.models.close_session(
            "double", sessions[1], "lease expired", settle_accepted=False
        )

        async def clean() -> bool:
            left = [name async for name in redis_client.scan_iter(match="tm:{p:double}:pay:*")]
            return not left and await counter(mesh, "log_bytes") == 0

        await mesh.until(clean)
        logs = [name async for name in redis_client.scan_iter(match="tm:{p:double}:log:*")]
        assert logs == []
