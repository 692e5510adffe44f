"""A mesh that was told to run no sampler says so at once (SAMP-06)."""

from __future__ import annotations

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    FrontMesh,
    base_sampler,
    create_request,
    refused,
    result,
    sample_request,
    save_for_sampler,
    session,
)


async def test_a_sampling_session_is_refused_while_no_sampler_is_there_SAMP_06(
    mesh: FrontMesh, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    replica = await mesh.replica(samplers=False)
    await start_trainer()
    own = await session(replica)
    async with refused(InvalidInput, "base_model: pool double has no sampler", "only trains"):
        await base_sampler(replica, own)
    await start_sampler()
    assert await base_sampler(replica, own)


async def test_a_snapshot_is_saved_and_its_samples_fail_at_once_SAMP_06(
    mesh: FrontMesh, start_trainer: StartTrainer
) -> None:
    replica = await mesh.replica(samplers=False)
    await start_trainer()
    model = (await replica.scheduler.Submit(create_request(await session(replica)))).model_id
    save = (await replica.scheduler.Submit(save_for_sampler(model, 1))).request_id
    sampler = (await result(replica, save)).save.sampling_session_id
    reply = await replica.scheduler.Submit(sample_request(sampler, 0, n=2))
    assert len(reply.sample_sequence_ids) == 2
    failure = (await result(replica, reply.request_id)).failure
    assert failure.category == types.FAILURE_CATEGORY_USER
    assert "pool double has no sampler" in failure.message
