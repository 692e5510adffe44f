"""What a recovery must not need: checkpoints of others, recorded sequences; what it must not move: snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    POOL,
    Replica,
    command,
    create_request,
    new_model,
    result,
    sample_request,
    save_for_sampler,
    session,
)
from tests.contract.scheduler.front.owner import Owner
from tests.contract.scheduler.front.recorded import Client, lesson
from tests.contract.scheduler.front.test_front_recorded import client
from tests.doubles.eventually import eventually
from tests.doubles.fake_trainer import FakeTrainer

__all__ = ["client"]


def optim() -> types.Command:
    adam = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
    return types.Command(optim_step=types.OptimStepBody(adam=adam))


async def based_on_a_durable_point(redis: Redis, model: str) -> None:
    async def freed() -> bool:
        return b'"durable"' in (await redis.hget(keys.model(POOL, model), "base") or b"")

    await eventually(freed)


async def test_a_replay_reads_no_records_they_may_have_expired_GAP_02_ADD_07(
    client: Client, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    (one,) = await client.sample(0)
    datum, spans = lesson(one)
    await client.train([datum], [spans])
    (trained,) = client.seen
    client.seen.clear()
    gone = [name async for name in redis_client.scan_iter(match="*record:*")]
    assert gone
    await redis_client.delete(*gone)
    await client.trainer.stop()
    await start_trainer()
    reply = await client.replica.scheduler.Submit(command(client.model_id, client.seq + 1, optim()))
    stepped = await result(client.replica, reply.request_id)
    assert stepped.optim_step.metrics["window_datums"] == 1, stepped
    (again,) = client.seen
    for name, values in trained.fields.items():
        assert np.array_equal(again.fields[name], values, equal_nan=True)


async def test_a_model_outlives_the_checkpoint_of_another_tenant_it_was_loaded_from_GAP_02_SEC_05(
    owner: Owner, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    """Public when it was loaded; private, deleted and gone when the trainer dies."""
    path = await owner.save("a")
    await owner.publish(path)
    replica = owner.replica
    create = create_request(await session(replica, tenant=BOB), tenant=BOB)
    reply = await replica.scheduler.Submit(create)
    await result(replica, reply.request_id, BOB)
    load = types.Command(load_weights=types.LoadWeightsBody(path=path, optimizer=True))
    loaded = await replica.scheduler.Submit(command(reply.model_id, 1, load, tenant=BOB))
    assert not (await result(replica, loaded.request_id, BOB)).HasField("failure")
    await based_on_a_durable_point(redis_client, reply.model_id)
    await owner.publish(path, False)
    await replica.scheduler.DeleteCheckpoint(
        pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=owner.model, checkpoint_id="weights/a")
    )
    assert owner.files(path) == []
    await stop_trainer(owner.mesh.closers)
    await start_trainer()
    stepped = await replica.scheduler.Submit(command(reply.model_id, 2, optim(), tenant=BOB))
    assert not (await result(replica, stepped.request_id, BOB)).HasField("failure")
    await owner.save("b")


async def stop_trainer(closers: list[Any]) -> None:
    for close in closers:
        if isinstance(close.__self__, FakeTrainer):
            await close()


async def test_a_sampling_session_keeps_its_version_whatever_is_trained_saved_or_lost_SNAP_05_LEASE_02(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    trainer = await start_trainer()
    await start_sampler(max_adapters=1)
    model = await new_model(replica, await session(replica))
    seq = 0

    async def saved(key: int) -> str:
        nonlocal seq
        seq += 1
        reply = await replica.scheduler.Submit(save_for_sampler(model, seq, key=key))
        return (await result(replica, reply.request_id)).save.sampling_session_id

    async def sampled(sampler: str, number: int) -> types.SampleResult:
        request = sample_request(sampler, number, tokens=16)
        request.command.sample.seed = 7
        reply = await replica.scheduler.Submit(request)
        return (await result(replica, reply.request_id)).sample

    async def step() -> None:
        nonlocal seq
        seq += 1
        await result(replica, (await replica.scheduler.Submit(command(model, seq, optim()))).request_id)

    first = await saved(0)
    before = await sampled(first, 0)
    await step()
    second = await saved(1)
    other = await sampled(second, 0)
    assert other.sequences != before.sequences
    assert await sampled(first, 1) == before
    await trainer.stop()
    await start_trainer()
    await step()
    assert await sampled(first, 2) == before
    assert await sampled(second, 1) == other
