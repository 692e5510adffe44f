"""Samples from submission to result, with real calls to sampler doubles."""

from __future__ import annotations

import asyncio

import numpy as np
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, Forbidden, InvalidInput, KeyConflict, UnknownId
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    FrontMesh,
    Replica,
    base_sampler,
    refused,
    result,
    sample_request,
    session,
    unserved_pool,
    watching,
)
from tests.doubles.eventually import eventually


async def test_sample_is_answered_with_its_announced_sequences(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, n=4, tokens=3)
    request.command.sample.stop.disabled = True  # otherwise one in forty ends early by its EOS token
    reply = await replica.scheduler.Submit(request)
    assert reply.sample_sequence_ids == [f"{sampler}.0.{i}" for i in range(4)]
    sample = (await result(replica, reply.request_id)).sample
    assert [len(np.frombuffer(s.tokens, "<i4")) for s in sample.sequences] == [3] * 4
    assert all(len(s.tokens) == len(s.logprobs) for s in sample.sequences)


async def test_sample_sent_five_times_over_two_replicas_runs_once_IDEM_04(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    double = await start_sampler()
    sampler = await base_sampler(replicas[0], await session(replicas[0]))
    request = sample_request(sampler, 3, n=2)
    replies = await asyncio.gather(*(replicas[i % 2].scheduler.Submit(request) for i in range(5)))
    assert len({reply.request_id for reply in replies}) == 1
    assert len({tuple(reply.sample_sequence_ids) for reply in replies}) == 1
    first = await result(replicas[0], replies[0].request_id)
    again = await replicas[1].scheduler.Submit(request)
    assert again.request_id == replies[0].request_id
    assert await result(replicas[1], again.request_id) == first
    assert len([e for e in double.journal.entries if e["kind"] == "sample"]) == 1


async def test_seq_ids_above_2_53_are_two_futures_IDEM_08(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    seqs = (700000000000000001, 700000000000000002)
    first, second = [await replica.scheduler.Submit(sample_request(sampler, seq)) for seq in seqs]
    assert first.request_id != second.request_id
    assert first.sample_sequence_ids == [f"{sampler}.{seqs[0]}.0"]
    results = [await result(replica, reply.request_id) for reply in (first, second)]
    assert results[0] != results[1]


async def test_more_sequences_than_any_client_may_ask_for_are_refused(
    replica: Replica, start_sampler: StartSampler
) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    async with refused(InvalidInput, "num_samples"):
        await replica.scheduler.Submit(sample_request(sampler, 0, n=1_000_000))


async def test_used_seq_with_another_payload_is_refused_IDEM_09(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    async with refused(KeyConflict, "different request"):
        await replica.scheduler.Submit(sample_request(sampler, 0, print_=bytes(15) + b"x"))
    assert (await result(replica, reply.request_id)).HasField("sample")


async def test_rejected_sample_fails_by_its_future_VAL_01(replica: Replica, start_sampler: StartSampler) -> None:
    double = await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0)
    request.command.rejected = "max_tokens: must be at least 1"
    reply = await replica.scheduler.Submit(request)
    failure = (await result(replica, reply.request_id)).failure
    assert (failure.category, failure.message) == (types.FAILURE_CATEGORY_USER, "max_tokens: must be at least 1")
    assert (await result(replica, (await replica.scheduler.Submit(sample_request(sampler, 1))).request_id)).sample
    assert len(double.journal.entries) == 1


async def test_cancel_aborts_a_running_sample_FUT_08(replica: Replica, start_sampler: StartSampler) -> None:
    """The future fails as cancelled (user), first settlement wins, the sampler stays in use (FUT-01)."""
    double = await start_sampler()
    rule = double.faults.add("hold_before", "sample", times=1)
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    await eventually(lambda: double.running)
    async with refused(Forbidden):
        await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=BOB, request_id=reply.request_id))
    for _ in range(2):
        await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=ALICE, request_id=reply.request_id))
    failure = (await result(replica, reply.request_id)).failure
    assert (failure.category, failure.message) == (types.FAILURE_CATEGORY_USER, "cancelled")
    await eventually(lambda: not double.running)
    double.faults.remove(rule)
    await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=ALICE, request_id="double." + "0" * 32 + ".0"))
    next_one = await replica.scheduler.Submit(sample_request(sampler, 1))
    assert (await result(replica, next_one.request_id)).HasField("sample")


async def test_tenant_with_too_many_open_samples_is_told_to_wait_SAMP_12(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_samples=2)
    await unserved_pool(replica)
    sampler = await base_sampler(replica, await session(replica))
    accepted = [await replica.scheduler.Submit(sample_request(sampler, seq)) for seq in range(2)]
    async with refused(Busy, "in flight"):
        await replica.scheduler.Submit(sample_request(sampler, 2))
    assert (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id == accepted[0].request_id
    await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=ALICE, request_id=accepted[0].request_id))
    await replica.scheduler.Submit(sample_request(sampler, 2))


async def test_expired_result_is_gone_and_its_retry_a_terminal_failure_IDEM_05(
    mesh: FrontMesh, start_sampler: StartSampler, redis_client: Redis
) -> None:
    replica = await mesh.replica(retention_seconds=0.3)
    double = await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    first = await replica.scheduler.Submit(sample_request(sampler, 0))
    row = keys.req("double", first.request_id.split(".")[1])
    await eventually(lambda: _is(redis_client, row, "state", b"done"))

    async def gone() -> bool:
        async with watching(replica) as watch:
            await watch.add(first.request_id)
            return (await watch.next()).state == pb.WATCH_STATE_UNKNOWN

    await eventually(gone)
    second = await replica.scheduler.Submit(sample_request(sampler, 0))
    assert second.request_id != first.request_id
    assert "expired" in (await result(replica, second.request_id)).failure.message
    assert (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id == second.request_id
    assert len([e for e in double.journal.entries if e["kind"] == "sample"]) == 1


async def test_large_result_travels_in_frames(replica: Replica, start_sampler: StartSampler) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    request = sample_request(sampler, 0, n=4, tokens=40_000)
    request.command.sample.stop.disabled = True
    reply = await replica.scheduler.Submit(request)
    sample = (await result(replica, reply.request_id)).sample
    assert sample.ByteSize() > 1 << 20
    assert [len(s.tokens) for s in sample.sequences] == [160_000] * 4


async def test_sampling_session_is_one_per_key_and_refuses_another_target_IDEM_13(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    await start_sampler()
    session_id = await session(replicas[0])
    made = await asyncio.gather(*(base_sampler(replicas[i % 2], session_id) for i in range(5)))
    assert len(set(made)) == 1
    conflicting = pb.CreateSamplingSessionRequest(
        tenant_id=ALICE, session_id=session_id, model_path=f"tinker://{session_id}:train:0/sampler_weights/x"
    )
    async with refused(KeyConflict):
        await replicas[1].scheduler.CreateSamplingSession(conflicting)
    conflicting.sampling_session_seq_id = 1
    conflicting.model_path = f"tinker://{session_id}:train:0/weights/x"
    async with refused(InvalidInput, "'weights'", "'sampler_weights'"):
        await replicas[1].scheduler.CreateSamplingSession(conflicting)
    async with refused(InvalidInput, "base_model", "tinkermesh/double"):
        await replicas[0].scheduler.CreateSamplingSession(
            pb.CreateSamplingSessionRequest(
                tenant_id=ALICE, session_id=session_id, sampling_session_seq_id=2, base_model="nobody/has-this"
            )
        )
    got = await replicas[1].scheduler.GetSampler(pb.GetSamplerRequest(tenant_id=ALICE, sampling_session_id=made[0]))
    assert (got.sampler_id, got.base_model, got.model_path) == (made[0], "tinkermesh/double", "")


async def test_foreign_and_unknown_ids_are_refused_everywhere_SEC_05(
    replica: Replica, start_sampler: StartSampler
) -> None:
    double = await start_sampler()
    session_id = await session(replica)
    sampler = await base_sampler(replica, session_id)
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    await result(replica, reply.request_id)
    done = len(double.journal.entries)
    rpc = replica.scheduler
    foreign = (
        rpc.Submit(sample_request(sampler, 0, tenant=BOB)),
        rpc.Submit(sample_request(sampler, 9, tenant=BOB)),
        rpc.GetSampler(pb.GetSamplerRequest(tenant_id=BOB, sampling_session_id=sampler)),
        rpc.CreateSamplingSession(
            pb.CreateSamplingSessionRequest(tenant_id=BOB, session_id=session_id, base_model="tinkermesh/double")
        ),
        rpc.Cancel(pb.CancelRequest(tenant_id=BOB, request_id=reply.request_id)),
        rpc.GetResult(pb.GetResultRequest(tenant_id=BOB, request_id=reply.request_id)).read(),
    )
    for call in foreign:
        async with refused(Forbidden):
            await call
    unknown = "00000000-0000-4000-8000-000000000000:sample:0:double"
    for call in (
        rpc.Submit(sample_request(unknown, 0)),
        rpc.Submit(sample_request("garbage", 0)),
        rpc.GetSampler(pb.GetSamplerRequest(tenant_id=ALICE, sampling_session_id=unknown)),
    ):
        async with refused(UnknownId):
            await call
    assert len(double.journal.entries) == done


async def _is(redis: Redis, name: str, field: str, value: bytes) -> bool:
    return await redis.hget(name, field) == value
