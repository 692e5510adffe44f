"""Snapshots: pushed to samplers, sampled from, named once however often they are asked for."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import InvalidInput
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BASE,
    FrontMesh,
    Replica,
    new_model,
    refused,
    result,
    sample_request,
    save_for_sampler,
    session,
)
from tests.doubles.eventually import eventually


async def test_snapshot_is_pushed_and_sampled_without_another_load_ADD_02_SAMP_04(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    await start_trainer()
    double = await start_sampler()
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    reply = await replica.scheduler.Submit(save_for_sampler(model_id, 1, name="first"))
    path = (await result(replica, reply.request_id)).save.path
    assert path == f"tinker://{model_id}/sampler_weights/first"
    await eventually(lambda: double.loaded)
    (name,) = double.loaded
    assert name.startswith(f"{model_id}@first_")
    created = await replica.scheduler.CreateSamplingSession(
        pb.CreateSamplingSessionRequest(
            tenant_id=ALICE, session_id=session_id, sampling_session_seq_id=5, base_model=BASE, model_path=path
        )
    )
    sampled = await replica.scheduler.Submit(sample_request(created.sampling_session_id, 0))
    assert (await result(replica, sampled.request_id)).HasField("sample")
    kinds = [(entry["kind"], entry.get("adapter")) for entry in double.journal.entries]
    assert kinds == [("load_adapter", name), ("sample", name)]


async def test_failed_push_never_fails_the_save_ADD_02_SNAP_09(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    await start_trainer()
    double = await start_sampler(max_adapters=0)
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    reply = await replica.scheduler.Submit(save_for_sampler(model_id, 1, key=0))
    saved = (await result(replica, reply.request_id)).save
    assert saved.sampling_session_id
    double.max_adapters = 4
    sampled = await replica.scheduler.Submit(sample_request(saved.sampling_session_id, 0))
    assert (await result(replica, sampled.request_id)).HasField("sample")


async def test_retried_unnamed_save_makes_an_alias_IDEM_13(
    mesh: FrontMesh, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    await start_trainer()
    await start_sampler()
    session_id = await session(replicas[0])
    model_id = await new_model(replicas[0], session_id)
    first = await replicas[0].scheduler.Submit(save_for_sampler(model_id, 1, key=0))
    again = await replicas[1].scheduler.Submit(save_for_sampler(model_id, 1, key=1))
    assert again.request_id == first.request_id
    saved = (await result(replicas[1], first.request_id)).save
    assert saved.sampling_session_id == f"{session_id}:sample:0:double"
    path = (
        await replicas[0].scheduler.GetSampler(
            pb.GetSamplerRequest(tenant_id=ALICE, sampling_session_id=saved.sampling_session_id)
        )
    ).model_path
    for key in (0, 1):
        named = await replicas[key].scheduler.CreateSamplingSession(
            pb.CreateSamplingSessionRequest(
                tenant_id=ALICE, session_id=session_id, sampling_session_seq_id=key, model_path=path
            )
        )
        assert named.sampling_session_id == saved.sampling_session_id


async def test_base_model_differing_from_the_snapshots_is_refused(
    replica: Replica, start_trainer: StartTrainer
) -> None:
    await start_trainer()
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    reply = await replica.scheduler.Submit(save_for_sampler(model_id, 1, name="snap"))
    path = (await result(replica, reply.request_id)).save.path
    request = pb.CreateSamplingSessionRequest(
        tenant_id=ALICE, session_id=session_id, base_model="nobody/none", model_path=path
    )
    async with refused(InvalidInput, "nobody/none", BASE):
        await replica.scheduler.CreateSamplingSession(request)
