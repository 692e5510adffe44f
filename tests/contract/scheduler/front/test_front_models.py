"""Models, snapshots and artifacts through the front, with the trainer and sampler doubles."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from redis.asyncio import Redis
from tinkermesh.v1 import admin_pb2
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, InvalidInput, MissingResource, UnknownId
from services.common.ids import key_hash
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BASE,
    BOB,
    FrontMesh,
    Replica,
    create_request,
    new_model,
    refused,
    result,
    save_for_sampler,
    saved,
    session,
)
from tests.doubles.eventually import eventually


async def test_create_model_five_times_over_two_replicas_takes_one_slot_IDEM_02(
    mesh: FrontMesh, start_trainer: StartTrainer
) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    await start_trainer()
    session_id = await session(replicas[0])
    replies = await asyncio.gather(*(replicas[i % 2].scheduler.Submit(create_request(session_id)) for i in range(5)))
    assert len({(reply.request_id, reply.model_id) for reply in replies}) == 1
    assert (await result(replicas[1], replies[0].request_id)).HasField("model")
    slots = (await replicas[0].admin.ListSlots(admin_pb2.ListSlotsRequest())).slots
    assert [(s.state, s.model_id, s.tenant_id) for s in slots if s.state != "free"] == [
        ("held", f"{session_id}:train:0", ALICE)
    ]


async def test_create_names_the_base_models_there_are_VAL_15(replica: Replica, start_trainer: StartTrainer) -> None:
    await start_trainer()
    session_id = await session(replica)
    async with refused(InvalidInput, "base_model", "nobody/none", BASE):
        await replica.scheduler.Submit(create_request(session_id, base="nobody/none"))
    async with refused(Forbidden):
        await replica.scheduler.Submit(create_request(session_id, tenant=BOB, base="nobody/none"))
    reply = await replica.scheduler.Submit(create_request(session_id, base=f"{BASE}:peft:2048"))
    assert (await result(replica, reply.request_id)).HasField("model")


async def test_create_in_an_ended_session_is_refused_but_its_retry_answered_IDEM_11(
    replica: Replica, start_trainer: StartTrainer
) -> None:
    await start_trainer()
    session_id = await session(replica)
    reply = await replica.scheduler.Submit(create_request(session_id))
    await result(replica, reply.request_id)
    await replica.scheduler.FinishSession(pb.FinishSessionRequest(tenant_id=ALICE, session_id=session_id))
    assert (await replica.scheduler.Submit(create_request(session_id))).request_id == reply.request_id
    async with refused(UnknownId, "finished"):
        await replica.scheduler.Submit(create_request(session_id, 1))


async def test_expired_session_frees_its_slot_and_its_artifacts_stay_LEASE_02_API_12(
    mesh: FrontMesh, start_trainer: StartTrainer
) -> None:
    replica = await mesh.replica(lease_seconds=2.0)
    await start_trainer()
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    path = await saved(replica, model_id, 1, "kept")
    before = (await replica.scheduler.GetModel(pb.GetModelRequest(tenant_id=ALICE, model_id=model_id))).layout
    assert before.rank and before.train_attn and before.train_mlp and before.train_unembed

    async def free() -> bool:
        slots = (await replica.admin.ListSlots(admin_pb2.ListSlotsRequest())).slots
        return bool(slots) and all(slot.state == "free" for slot in slots)

    await eventually(free)
    info = await replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=ALICE, path=path))
    assert (info.base_model, info.layout) == (BASE, before)
    async with refused(Forbidden):
        await replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=BOB, path=path))
    again = await session(replica)
    create = create_request(again)
    create.command.CopyFrom(
        types.Command(create_from_checkpoint=types.CreateFromCheckpointBody(path=path, optimizer=True))
    )
    reply = await replica.scheduler.Submit(create)
    assert (await result(replica, reply.request_id)).model.model_id == f"{again}:train:0"


async def test_artifacts_of_another_tenant_are_refused_SEC_05(replica: Replica, start_trainer: StartTrainer) -> None:
    await start_trainer()
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    path = await saved(replica, model_id, 1, "mine")
    reply = await replica.scheduler.Submit(save_for_sampler(model_id, 2, name="mine"))
    snapshot = (await result(replica, reply.request_id)).save.path
    foreign_session = await session(replica, tenant=BOB)
    load = create_request(foreign_session, tenant=BOB)
    load.command.CopyFrom(types.Command(create_from_checkpoint=types.CreateFromCheckpointBody(path=path)))
    rpc = replica.scheduler
    for call in (
        rpc.GetModel(pb.GetModelRequest(tenant_id=BOB, model_id=model_id)),
        rpc.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=BOB, path=path)),
        rpc.GetTrainingRun(pb.GetTrainingRunRequest(tenant_id=BOB, training_run_id=model_id)),
        rpc.DeleteCheckpoint(
            pb.DeleteCheckpointRequest(tenant_id=BOB, training_run_id=model_id, checkpoint_id="weights/mine")
        ),
        rpc.CreateSamplingSession(
            pb.CreateSamplingSessionRequest(tenant_id=BOB, session_id=foreign_session, model_path=snapshot)
        ),
        rpc.Submit(load),
        rpc.Submit(save_for_sampler(model_id, 3, tenant=BOB, name="x")),
    ):
        async with refused(Forbidden):
            await call
    assert (await rpc.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=ALICE, path=path))).path == path


async def test_metadata_changed_by_hand_is_refused_SEC_08(
    mesh: FrontMesh, replica: Replica, start_trainer: StartTrainer
) -> None:
    """Making somebody else's checkpoint one's own in meta.json does not open it."""
    await start_trainer()
    model_id = await new_model(replica, await session(replica))
    path = await saved(replica, model_id, 1, "mine")
    meta_file = mesh.store_root / "runs" / model_id / "weights" / "mine" / "meta.json"
    meta = json.loads(meta_file.read_bytes())
    meta_file.write_text(json.dumps(meta | {"tenant_id": BOB}))
    for tenant in (ALICE, BOB):
        async with refused(InvalidInput, "seal"):
            await replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=tenant, path=path))


async def test_training_run_lists_and_deletes_its_newest_checkpoints(
    mesh: FrontMesh, replica: Replica, start_trainer: StartTrainer
) -> None:
    await start_trainer()
    model_id = await new_model(replica, await session(replica))
    for seq, name in ((1, "one"), (2, "two")):
        await saved(replica, model_id, seq, name)
    reply = await replica.scheduler.Submit(save_for_sampler(model_id, 3, name="snap"))
    await result(replica, reply.request_id)
    request = pb.GetTrainingRunRequest(tenant_id=ALICE, training_run_id=model_id)
    run = await replica.scheduler.GetTrainingRun(request)
    assert (run.base_model, run.layout.rank, run.tenant_id) == (BASE, 4, ALICE)
    assert run.last_checkpoint.checkpoint_id == "weights/two"
    assert run.last_sampler_checkpoint.path == f"tinker://{model_id}/sampler_weights/snap"
    delete = pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=model_id, checkpoint_id="weights/two")
    await replica.scheduler.DeleteCheckpoint(delete)
    assert list((mesh.store_root / "runs" / model_id / "weights").glob("*two*")) == []
    async with refused(MissingResource):
        await replica.scheduler.DeleteCheckpoint(delete)
    run = await replica.scheduler.GetTrainingRun(request)
    assert run.last_checkpoint.checkpoint_id == "weights/one"
    async with refused(MissingResource):
        unknown = "00000000-0000-4000-8000-000000000000:train:0"
        await replica.scheduler.GetTrainingRun(pb.GetTrainingRunRequest(tenant_id=ALICE, training_run_id=unknown))


async def test_escaping_paths_are_refused_SEC_06(mesh: FrontMesh, replica: Replica, tmp_path: Path) -> None:
    model_id = f"{await session(replica)}:train:0"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "meta.json").write_text("{}")
    folder = mesh.store_root / "runs" / model_id / "weights"
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    for path in (f"tinker://{model_id}/weights/link", f"tinker://{model_id}/weights/..", "tinker://../weights/x"):
        async with refused(InvalidInput):
            await replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=ALICE, path=path))


async def test_admin_shows_pools_queues_sessions_futures_and_one_request(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler, redis_client: Redis
) -> None:
    await start_trainer()
    await start_sampler()
    session_id = await session(replica)
    model_id = await new_model(replica, session_id)
    gapped = await replica.scheduler.Submit(save_for_sampler(model_id, 3, name="late"))
    admin = replica.admin
    (pool,) = (await admin.ListPools(admin_pb2.AdminListPoolsRequest())).pools
    assert (pool.facts.pool, pool.leader, pool.models, pool.queued_commands) == ("double", "replica-0", 1, 1)
    (queue,) = (await admin.ListQueues(admin_pb2.ListQueuesRequest(pool="double"))).queues
    assert (queue.model_id, queue.tenant_id, queue.depth, queue.next_seq_id, queue.gap_at) == (
        model_id,
        ALICE,
        1,
        1,
        1,
    )
    (listed,) = (await admin.ListSessions(admin_pb2.ListSessionsRequest(tenant_id=ALICE))).sessions
    assert (listed.session_id, listed.state, list(listed.model_ids)) == (session_id, "open", [model_id])
    assert (await admin.ListSessions(admin_pb2.ListSessionsRequest(tenant_id=BOB))).sessions == []
    futures = (await admin.ListFutures(admin_pb2.ListFuturesRequest(pool="double"))).futures
    assert {(f.op, f.state) for f in futures} == {("create", "done"), ("save_for_sampler", "queued")}
    queued = (await admin.ListFutures(admin_pb2.ListFuturesRequest(state="queued", limit=5))).futures
    assert [f.request_id for f in queued] == [gapped.request_id]
    created = f"double.{key_hash('train', model_id, 0)}.0"
    report = await admin.InspectRequest(admin_pb2.InspectRequestRequest(request_id=created))
    assert [entry.event for entry in report.timeline][:4] == ["admitted", "issued", "executed", "settled"]
    assert report.future.op == "create"
    (trainer,) = (await admin.ListTrainers(admin_pb2.ListTrainersRequest())).trainers
    assert (trainer.trainer_id, trainer.draining) == ("trainer-double", False)
    async with refused(UnknownId, "nowhere"):
        await admin.ListQueues(admin_pb2.ListQueuesRequest(pool="nowhere"))
