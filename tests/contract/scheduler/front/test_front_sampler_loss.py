"""Samples whose sampler dies, falls silent, hangs or is missing, and whose scheduler loses its lease."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    FrontMesh,
    Replica,
    base_sampler,
    result,
    sample_request,
    session,
)
from tests.doubles.eventually import eventually


async def test_lost_sampler_hands_its_samples_to_another_SAMP_10(replica: Replica, start_sampler: StartSampler) -> None:
    first = await start_sampler(sampler_id="a")
    first.faults.add("hold_before", "sample", times=0)
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    await eventually(lambda: first.running)
    second = await start_sampler(sampler_id="b")
    await first.stop()
    assert (await result(replica, reply.request_id)).HasField("sample")
    assert len(second.journal.entries) == 1


async def test_silent_sampler_hands_its_samples_to_another_SAMP_10(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    """Its machine is gone: the calls to it neither fail nor end, it only stops registering."""
    replica = await mesh.replica(registration_seconds=2.5)
    first = await start_sampler(sampler_id="a")
    rule = first.faults.add("hold_before", "sample", times=0)
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    await eventually(lambda: first.running)
    await first.fall_silent()
    second = await start_sampler(sampler_id="b")
    assert (await result(replica, reply.request_id)).HasField("sample")
    assert len(second.journal.entries) == 1
    first.faults.remove(rule)


async def test_without_a_sampler_the_wait_is_bounded_and_names_its_stage_SAMP_06(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replica = await mesh.replica(sampler_wait_seconds=1.0, registration_seconds=1.0)
    double = await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    await double.stop()
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    failure = (await result(replica, reply.request_id)).failure
    assert failure.category == types.FAILURE_CATEGORY_SERVER
    assert "stage" in failure.message, failure


async def test_hanging_sampler_is_cut_off_at_the_deadline_SAMP_06_LEASE_07(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    replica = await mesh.replica(sample_seconds=0.5)
    double = await start_sampler()
    rule = double.faults.add("hold_before", "sample", times=0)
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    failure = (await result(replica, reply.request_id)).failure
    assert failure.category == types.FAILURE_CATEGORY_SERVER
    assert "stage 'sample'" in failure.message
    await eventually(lambda: not double.running)  # aborted there too
    double.faults.remove(rule)


async def test_new_lease_holder_goes_on_with_running_samples_FUT_05(
    mesh: FrontMesh, start_sampler: StartSampler
) -> None:
    first, second = await mesh.replica(), await mesh.replica()
    double = await start_sampler()
    rule = double.faults.add("hold_before", "sample", times=1)
    sampler = await base_sampler(first, await session(first))
    replies = [await first.scheduler.Submit(sample_request(sampler, seq)) for seq in range(3)]
    await eventually(lambda: len(double.journal.entries) == 2 and len(double.running) == 1, 20)
    (held_id,) = double.running
    leader = await mesh.leader()
    survivor = second if leader is first else first
    await leader.stop()
    mesh.replicas.remove(leader)
    await eventually(lambda: double.attached > 0, 20)
    double.faults.remove(rule)
    for reply in replies:
        assert (await result(survivor, reply.request_id)).HasField("sample")
    held = [e for e in double.journal.entries if e.get("request") == held_id]
    assert len(held) == 1, "the next lease holder attaches to the running call"
