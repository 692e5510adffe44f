"""Automatic checkpoints bound the log, and a death at any moment of one costs nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.scheduler.dispatch import client
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.poison import poisoned
from tests.contract.scheduler.recovering import (
    counter,
    fields,
    final_state,
    kill_trainer,
    live,
    log_length,
    rounds,
    undisturbed,
)
from tests.contract.scheduler.requests import TENANT, new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess

EVERY_2 = RecoveryLimits(durable_every_steps=2)


async def test_the_payloads_of_a_log_are_bounded_by_durable_points_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    limits = RecoveryLimits(durable_every_steps=1_000, durable_log_bytes=400)
    async with running_mesh(valkey.url, tmp_path, recovery=limits) as mesh:
        model = await mesh.opened(new_session())
        most = 0
        for number in range(1, 21):
            await rounds(mesh, model, [number])
            most = max(most, int((await fields(mesh, model, "log_bytes"))[0]))

        async def settled() -> bool:
            return not await cast("Any", redis_client.hlen(keys.durables_running(POOL)))

        await mesh.until(settled)
        assert 0 < most <= 400 + 4 * 84  # what came in while a capture was written; a round has 84 bytes
        assert await counter(mesh, "log_bytes") == int((await fields(mesh, model, "log_bytes"))[0]) <= 400
        assert await counter(mesh, "durables_total") >= 3
        usage = await TenancyStore(redis_client, Functions(redis_client)).usage(POOL, TENANT)
        assert usage["log_bytes"] == await counter(mesh, "log_bytes")  # the tenant's only model in this pool
        await kill_trainer(mesh)
        state = await final_state(mesh, model, 41)
        await mesh.done(await mesh.unload(model))
        assert await counter(mesh, "log_bytes") == 0
        assert state == await undisturbed(mesh, range(1, 21))


async def test_a_leader_that_dies_between_publication_and_swap_is_followed_MESH_02(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=EVERY_2, lease_ttl_ms=1000) as mesh:
        model = await mesh.opened(new_session())
        reached = asyncio.Event()

        async def dying(*_: Any) -> bool:
            reached.set()
            await asyncio.Event().wait()
            return True

        monkeypatch.setattr(mesh.replicas[0].training._driver._parts.store, "durable_settled", dying)
        await rounds(mesh, model, [1, 2])
        await mesh.until(reached.is_set)
        await mesh.replicas.pop(0).kill()
        await mesh.add_replica("successor")

        async def swapped() -> bool:
            return await fields(mesh, model, "base_pos") == ["4"]

        await mesh.until(swapped)
        await kill_trainer(mesh)
        await rounds(mesh, model, [3])
        assert await final_state(mesh, model, 7) == await undisturbed(mesh, [1, 2, 3])


async def test_the_swap_told_twice_keeps_the_base(mesh: Mesh) -> None:
    store = mesh.replicas[0].training._driver._parts.store
    model = await mesh.opened(new_session())
    await rounds(mesh, model, range(1, 17))

    async def swapped() -> bool:
        return await fields(mesh, model, "base_pos") == ["32"]

    await mesh.until(swapped)
    row = await mesh.replicas[0].training._driver._parts.recovery_units.models.row(POOL, model)
    assert row is not None
    term = int(await cast("Any", mesh.redis.hget(keys.lease(POOL), "term")))
    directory = str(row.base["directory"])
    assert await store.durable_settled(POOL, term, model, "any", directory)
    assert await cast("Any", mesh.redis.lrange(keys.dropped_durables(POOL), 0, -1)) == []
    assert (mesh.root / directory).is_dir()


async def test_a_save_published_but_not_settled_at_the_death_is_recognised(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    with monkeypatch.context() as patch:
        reached = asyncio.Event()
        original = client.TrainerClient.artifact

        async def lost(self: Any, unit: Any) -> Any:
            await original(self, unit)
            reached.set()
            await asyncio.Event().wait()

        patch.setattr(client.TrainerClient, "artifact", lost)
        save = await mesh.save(model, 3, "once")
        await mesh.until(reached.is_set)
        (version,) = (mesh.root / "runs" / model / "weights").glob("_version_*")
    await mesh.done(await mesh.batch(model, 4, [3]))
    await mesh.done(await mesh.step(model, 5))
    await kill_trainer(mesh)
    await mesh.done(save)
    assert list((mesh.root / "runs" / model / "weights").glob("_version_*")) == [version]


async def test_what_was_bisected_out_is_not_replayed_ADD_05_FAIL_13(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = [await mesh.opened(new_session(), tenant=f"tenant-{name}") for name in "ab"]
    with monkeypatch.context() as patch:
        async with held(mesh):
            ours = await mesh.batch(good, 1, [3, 4], salt=1, tenant="tenant-a")
            theirs = await mesh.batch(bad, 1, [5], tenant="tenant-b")
            poisoned(mesh, patch, lambda contents: any(request == theirs for request, _ in contents))
        await mesh.done(ours)
        assert "the pass failed as a whole" in (await mesh.failed(theirs)).message
    await kill_trainer(mesh)
    await live(mesh, good)
    assert await log_length(mesh, good) == 1
    await mesh.done(await mesh.step(good, 2, tenant="tenant-a"))
    path = (await mesh.done(await mesh.command(good, 3, tenant="tenant-a", save_weights={"name": "end"}))).save.path
    assert path.endswith("weights/end")
    replayed = {request for entry in mesh.passes() for request, _ in entry["datums"]}
    assert theirs not in replayed


@pytest.mark.parametrize("what", ["loss", "skip"])
async def test_a_replay_that_comes_to_something_else_stops_its_model_alone_ADD_05_MESH_05(
    mesh: Mesh, what: str
) -> None:
    other, model = await mesh.opened(new_session()), await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1, "kept"))).save.path
    await mesh.done(await mesh.batch(other, 1, [3, 4], salt=1))
    await mesh.done(await mesh.batch(model, 2, [3]))
    await mesh.done(await mesh.step(model, 3))
    name, place = keys.log(POOL, model), 1 if what == "loss" else 2
    entry = json.loads(await cast("Any", mesh.redis.lindex(name, place)))
    if what == "loss":
        entry["l"] = repr(float(entry["l"]) * 1.001)
    else:
        assert entry["o"] == "optim_step"
    await cast("Any", mesh.redis.lset(name, place, json.dumps(entry)))
    await mesh.trainer.stop()
    mesh.trainer = type(mesh.trainer)(mesh.root, facts=mesh.facts)
    if what == "skip":
        mesh.trainer.faults.add("skip_step", "optim")
    pending = await mesh.batch(model, 4, [3])
    await mesh.start_trainer()
    message = (await mesh.failed(pending)).message
    assert message.startswith("recovery stopped: ") and message.endswith(f"create a new model and restore from {path}")
    assert ("a step that was taken is skipped" in message) is (what == "skip")
    assert await counter(mesh, "replay_mismatches_total") == 1
    await mesh.done(await mesh.step(other, 2))


async def test_a_model_that_rests_is_covered_after_a_while(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    limits = RecoveryLimits(durable_idle_ms=300)
    async with running_mesh(valkey.url, tmp_path, recovery=limits) as mesh:
        model = await mesh.opened(new_session())
        await rounds(mesh, model, [1])

        async def covered() -> bool:
            return await log_length(mesh, model) == 0

        await mesh.until(covered)
        assert not [name async for name in redis_client.scan_iter(match="tm:{p:double}:pay:*")]
        assert await counter(mesh, "durables_total") == 1
        await mesh.done(await mesh.batch(model, 3, [3]))  # an open window has no step yet: nothing to cover
        await asyncio.sleep(0.6)
        assert await counter(mesh, "durables_total") == 1
