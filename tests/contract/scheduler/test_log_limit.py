"""A model's log has an end: a client that never steps is told to, one whose durable points do not come waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.parts.training import recovery_limits
from services.scheduler.settings import Settings
from services.scheduler.store.training import RecoveryLimits
from tests.contract.scheduler.recovering import fields, final_state, kill_trainer, live, rounds, undisturbed
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess

BATCH_BYTES = 84  # of datums of 3 and 4 tokens
LIMITS = RecoveryLimits(durable_every_steps=1_000, durable_log_bytes=100, durable_idle_ms=0, log_limit_bytes=400)


async def log_bytes(mesh: Mesh, model: str) -> int:
    return int((await fields(mesh, model, "log_bytes"))[0])


async def batches(mesh: Mesh, model: str, first_seq: int, contents: Sequence[int]) -> list[types.Failure | None]:
    """One after the other, awaited; why each failed. Equal contents are equal datums whatever their sequence id."""
    failures: list[types.Failure | None] = []
    for seq, content in enumerate(contents, first_seq):
        result = await mesh.settled(await mesh.batch(model, seq, [3, 4], salt=(content - seq) * 1000))
        failures.append(result.failure if result.WhichOneof("outcome") == "failure" else None)
    return failures


async def test_a_window_that_fills_the_log_takes_no_more_until_it_is_stepped_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=LIMITS) as mesh:
        model, calm = await mesh.opened(new_session()), await mesh.opened(new_session())
        failures = await batches(mesh, model, 1, range(1, 9))
        assert failures[:5] == [None] * 5
        for failure in failures[5:]:
            assert failure is not None and failure.category == types.FAILURE_CATEGORY_USER
            assert "call optim_step" in failure.message and "was not executed" in failure.message
        assert await log_bytes(mesh, model) == 5 * BATCH_BYTES
        await mesh.done(await mesh.batch(model, 9, [3], backward=False))  # leaves nothing in the log

        await kill_trainer(mesh)
        metrics = (await mesh.done(await mesh.step(model, 10))).optim_step.metrics
        assert (metrics["window_datums"], metrics["window_rejected_requests"]) == (10, 3)
        assert await batches(mesh, model, 11, [11]) == [None]
        await mesh.done(await mesh.step(model, 12))

        assert await batches(mesh, calm, 1, range(1, 6)) == [None] * 5
        await mesh.done(await mesh.step(calm, 6))
        assert await batches(mesh, calm, 7, [11]) == [None]
        await mesh.done(await mesh.step(calm, 8))
        assert await final_state(mesh, model, 13) == await final_state(mesh, calm, 9)


async def test_a_model_whose_durable_point_does_not_come_waits_for_it_and_loses_nothing_GAP_11(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=LIMITS) as mesh:
        calm = await undisturbed(mesh, range(1, 7))
        model, other = await mesh.opened(new_session()), await mesh.opened(new_session())
        hold = mesh.trainer.faults.add("hold_before", "publish", times=0)
        await rounds(mesh, model, range(1, 6))
        full = await log_bytes(mesh, model)
        assert full == 5 * BATCH_BYTES
        pending, step = await mesh.batch(model, 11, [3, 4], salt=6), await mesh.step(model, 12)
        await rounds(mesh, other, [1])  # came later, and was served
        assert [await mesh.state(one) for one in (pending, step)] == ["queued"] * 2
        state, reason = await mesh.replicas[0].training.models.queue_state(POOL, model, 11)
        assert (state, reason) == (
            "paused_capacity",
            f"the model's log is full ({full} bytes): it waits for a durable point",
        )
        mesh.trainer.faults.remove(hold)
        await mesh.done(pending)
        await mesh.done(step)
        assert await final_state(mesh, model, 13) == calm


async def test_a_full_window_stays_full_for_what_was_accepted_while_the_trainer_was_away(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=LIMITS) as mesh:
        model = await mesh.opened(new_session())
        assert await batches(mesh, model, 1, range(1, 6)) == [None] * 5
        await kill_trainer(mesh)
        assert "call optim_step" in (await mesh.failed(await mesh.batch(model, 6))).message
        await live(mesh, model)
        assert await log_bytes(mesh, model) == 5 * BATCH_BYTES
        await mesh.done(await mesh.step(model, 7))


async def test_a_log_without_a_limit_takes_everything(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, recovery=replace(LIMITS, log_limit_bytes=0)) as mesh:
        model = await mesh.opened(new_session())
        assert await batches(mesh, model, 1, range(1, 9)) == [None] * 8


@pytest.mark.parametrize(("limit", "durable", "bytes_"), [(1024, 256, 1 << 30), (8, 256, 256 << 20), (0, 256, 0)])
def test_a_log_is_never_full_before_a_durable_point_is_due(limit: int, durable: int, bytes_: int) -> None:
    settings = Settings("store", "pepper", log_limit_mib=limit, durable_log_mib=durable)
    assert recovery_limits(settings).log_limit_bytes == bytes_
