"""FAIL-16: a trainer that fails everything is not fed every tenant's queue; it restarts and work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.common.errors import Unavailable
from services.scheduler.core.breaker import TRIPS
from services.scheduler.dispatch import breaker
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.store import keys
from services.scheduler.store.overview import Overview
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.fake_trainer import POOL, FakeTrainer
from tests.doubles.valkey import ValkeyProcess


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(valkey.url, tmp_path, slots=16) as running:
        yield running


async def tripped(mesh: Mesh, spared: int = 3) -> list[tuple[str, str]]:
    """(model, request) of work that waits behind a breaker that has opened."""
    models = [await mesh.opened(new_session(), n) for n in range(TRIPS + spared)]
    mesh.trainer.faults.add("fail", "pass", times=0)
    for model in models[:TRIPS]:
        await mesh.failed(await mesh.batch(model, 1))
    await mesh.until(mesh.trainer.superseded.is_set)
    return [(model, await mesh.batch(model, 1)) for model in models[TRIPS:]]


async def test_after_k_lone_failures_work_waits_and_the_trainer_is_asked_to_restart_FAIL_16(mesh: Mesh) -> None:
    passes = len(mesh.trainer.faults.rules)
    waiting = await tripped(mesh)
    rule = mesh.trainer.faults.rules[passes]
    seen = rule.seen
    assert seen == TRIPS
    await asyncio.sleep(0.4)
    assert rule.seen == seen
    for model, request in waiting:
        assert await mesh.state(request) == "queued"
        state, reason = await mesh.replicas[0].training.models.queue_state(POOL, model, 1)
        assert state == "paused_capacity"
        assert reason.startswith(f"circuit breaker: {TRIPS} units in a row failed")
    assert "injected failure" in await Overview(mesh.redis).breaker(POOL)


async def test_the_next_life_recovers_what_waited_and_a_success_closes_it_FAIL_16(mesh: Mesh) -> None:
    waiting = await tripped(mesh)
    await mesh.replace_trainer()
    for _, request in waiting:
        await mesh.done(request)
    assert await Overview(mesh.redis).breaker(POOL) == ""
    trips = await cast("Any", mesh.redis.hget(keys.counters(POOL), "breaker_trips_total"))
    assert int(trips) == 1


async def test_another_leader_leaves_it_open_FAIL_16(mesh: Mesh) -> None:
    waiting = await tripped(mesh, spared=1)
    mesh.trainer.superseded.clear()
    await mesh.replicas[0].stop()
    await mesh.add_replica("second")
    await mesh.until(mesh.trainer.superseded.is_set)  # it asks again
    assert await mesh.state(waiting[0][1]) == "queued"


async def test_a_clients_own_failures_do_not_open_it_FAIL_16(mesh: Mesh) -> None:
    models = [await mesh.opened(new_session(), n) for n in range(TRIPS + 1)]
    mesh.trainer.faults.add("fail_user", "pass", times=TRIPS)
    for model in models[:TRIPS]:
        await mesh.failed(await mesh.batch(model, 1))
    await mesh.done(await mesh.batch(models[-1], 1))
    assert not mesh.trainer.superseded.is_set()


async def test_a_trainer_that_fails_every_replay_closes_no_model_it_restarts_FAIL_16_GAP_02(mesh: Mesh) -> None:
    """Its successor is well, and has all of them again."""
    models = [await mesh.opened(new_session(), n) for n in range(TRIPS)]
    for model in models:
        await mesh.done(await mesh.batch(model, 1))
    await mesh.trainer.stop()
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    mesh.trainer.faults.add("fail", "pass", times=0)
    await mesh.start_trainer()
    steps = [await mesh.step(model, 2) for model in models]
    await mesh.until(mesh.trainer.superseded.is_set)
    assert [await mesh.state(step) for step in steps] == ["queued"] * TRIPS
    await mesh.replace_trainer()
    for step in steps:
        assert (await mesh.done(step)).optim_step.metrics["window_datums"] == 1
    assert await Overview(mesh.redis).breaker(POOL) == ""


async def test_faults_of_one_trainer_do_not_count_against_a_model_on_the_next_FAIL_16_GAP_02(mesh: Mesh) -> None:
    models = [await mesh.opened(new_session(), n) for n in range(2)]
    for model in models:
        await mesh.done(await mesh.batch(model, 1))
    steps = []
    for _ in range(2):
        await mesh.trainer.stop()
        mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
        mesh.trainer.faults.add("fail", "pass", times=0)
        await mesh.start_trainer()
        steps = steps or [await mesh.step(model, 2) for model in models]
        await mesh.until(mesh.trainer.superseded.is_set)
    await mesh.replace_trainer()
    for step in steps:
        assert (await mesh.done(step)).optim_step.metrics["window_datums"] == 1


async def test_a_lost_request_to_restart_is_repeated_FAIL_16(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "ASK_SECONDS", 0.05)
    asked, retire = 0, TrainerClient.retire

    async def lost_once(self: TrainerClient, term: int, incarnation: str, reason: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("the trainer did not hear of it")
        await retire(self, term, incarnation, reason)

    monkeypatch.setattr(TrainerClient, "retire", lost_once)
    await tripped(mesh)
    assert asked >= 2
