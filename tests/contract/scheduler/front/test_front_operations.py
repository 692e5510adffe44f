"""Operators change and look at a running mesh: over gRPC, on real Redis, with doubled engines."""

from __future__ import annotations

import logging
import os
import time

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InUse, InvalidInput, ModelClosed, UnknownId
from services.common.ids import parse_request_id
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    POOL,
    FrontMesh,
    Replica,
    base_sampler,
    new_model,
    refused,
    result,
    sample_request,
    save_for_sampler,
    saved,
    session,
)
from tests.contract.scheduler.front.owner import Owner
from tests.contract.scheduler.front.test_front_timeline import LATE, events, inspected, stepping, timeline_until
from tests.doubles.eventually import eventually


async def stepped(replica: Replica, model: str, seq: int) -> types.Result:
    return await result(replica, await stepping(replica, model, seq), seconds=LATE)


async def evicted(replica: Replica, model: str, *, close: bool = False, reason: str = "") -> str:
    request = pb.EvictModelRequest(pool=POOL, model_id=model, close=close, reason=reason)
    return str((await replica.admin.EvictModel(request)).state)


def said(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [record.__dict__["fields"] for record in caplog.records if record.name == "tinkermesh.audit"]


# ---- evict -------------------------------------------------------------------------------------


async def test_a_model_evicted_from_its_slot_goes_on_where_it_was(
    replica: Replica, start_trainer: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its weights afterwards are those of a twin that was left alone."""
    caplog.set_level(logging.INFO)
    await start_trainer()
    one, twin = [await new_model(replica, await session(replica)) for _ in range(2)]
    for model in (one, twin):
        await stepped(replica, model, 1)
    assert await evicted(replica, one) == "unseated"

    async def left() -> bool:
        reply = await replica.admin.ListModels(pb.ListModelsRequest())
        return any(model.model_id == one and model.phase == "unseated" and model.slot == -1 for model in reply.models)

    await eventually(left, LATE)
    for model in (one, twin):
        answer = await stepped(replica, model, 2)
        assert not answer.HasField("failure"), answer
    assert (await stepped(replica, one, 3)).optim_step == (await stepped(replica, twin, 3)).optim_step
    (line,) = said(caplog)
    assert (line["op"], line["decision"], line["model"]) == ("unseat", "done", one)
    assert line["peer"].startswith("ipv4:127.0.0.1:")


async def test_a_model_is_closed_with_the_reason_its_client_reads(
    replica: Replica, start_trainer: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trainer = await start_trainer()
    model = await new_model(replica, await session(replica))
    path = await saved(replica, model, 1, "a")
    trainer.faults.add("hold_before", "optim", times=0)
    running, waiting = [await stepping(replica, model, seq) for seq in (2, 3)]
    await timeline_until(replica, running, "issued")
    request = pb.EvictModelRequest(model_id=model, close=True, reason="  its owner\nleft ")
    assert (await replica.admin.EvictModel(request)).state == "closing"
    trainer.faults.rules.clear()
    assert not (await result(replica, running, seconds=LATE)).HasField("failure")
    failure = (await result(replica, waiting, seconds=LATE)).failure
    expected = f"closed by the operator: its owner left; create a new model and restore from {path}"
    assert (failure.message, failure.category) == (expected, types.FAILURE_CATEGORY_SERVER)
    async with refused(ModelClosed, "its owner left"):
        await stepping(replica, model, 4)
    async with refused(ModelClosed, "its owner left"):
        await evicted(replica, model, close=True, reason="again")

    async def freed() -> bool:
        return all(slot.state == "free" for slot in (await replica.admin.ListSlots(pb.ListSlotsRequest())).slots)

    await eventually(freed, LATE)
    done, again = said(caplog)
    assert (done["op"], done["reason"], again["decision"][:8]) == ("close", "its owner left", "refused:")


async def test_an_eviction_that_cannot_be_says_why(replica: Replica, start_trainer: StartTrainer) -> None:
    trainer = await start_trainer()
    model = await new_model(replica, await session(replica))
    async with refused(InvalidInput, "reason: missing"):
        await evicted(replica, model, close=True)
    async with refused(InvalidInput, "the limit is 500"):
        await evicted(replica, model, close=True, reason="x" * 501)
    for long in ({"model_id": "m" * 301}, {"pool": "p" * 301}):
        async with refused(InvalidInput, "the limit is 300"):
            await replica.admin.EvictModel(pb.EvictModelRequest(**long))
    for pool in (POOL, ""):
        async with refused(UnknownId, "nobody"):
            await replica.admin.EvictModel(pb.EvictModelRequest(pool=pool, model_id="nobody"))
    trainer.faults.add("hold_before", "optim", times=0)
    await timeline_until(replica, await stepping(replica, model, 1), "issued")
    async with refused(InUse, "a unit runs on slot"):
        await evicted(replica, model)
    trainer.faults.rules.clear()


# ---- requeue -----------------------------------------------------------------------------------


async def requeued(replica: Replica, request_id: str) -> int:
    return int((await replica.admin.RequeueRequest(pb.RequeueRequestRequest(request_id=request_id))).requests)


async def test_a_requeue_leaves_alone_what_runs_waits_or_is_settled(
    replica: Replica, start_trainer: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trainer = await start_trainer()
    model = await new_model(replica, await session(replica))
    settled = await stepping(replica, model, 1)
    await result(replica, settled, seconds=LATE)
    trainer.faults.add("hold_before", "optim", times=0)
    running, waiting = [await stepping(replica, model, seq) for seq in (2, 3)]
    await timeline_until(replica, running, "issued")
    for request_id, word in ((settled, "settled"), (running, "live fence"), (waiting, "waits already")):
        async with refused(InUse, word):
            await requeued(replica, request_id)
    for request_id in ("nonsense", f"{POOL}.{'0' * 32}.0"):
        async with refused(UnknownId):
            await requeued(replica, request_id)
    trainer.faults.rules.clear()
    for request_id in (running, waiting):
        await result(replica, request_id, seconds=LATE)
        assert events(await inspected(replica, request_id)).count("executed") == 1
    assert [line["decision"].partition(":")[0] for line in said(caplog)] == ["refused"] * 5


async def test_a_command_nobody_took_back_runs_once_more_and_once_only_FAIL_01(
    replica: Replica, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    """The set of running units forgot it (a damaged Redis), so the takeover did not see it."""
    first = await start_trainer()
    model = await new_model(replica, await session(replica))
    first.faults.add("hold_before", "optim", times=0)
    lost = await stepping(replica, model, 1)
    await timeline_until(replica, lost, "issued")
    await redis_client.delete(keys.running_units(POOL))
    await first.stop()
    second = await start_trainer()

    async def adopted() -> bool:
        return await redis_client.hget(keys.cell(POOL), "incarnation") == second.incarnation.encode()

    await eventually(adopted, LATE)
    assert await requeued(replica, lost) == 1
    assert not (await result(replica, lost, seconds=LATE)).HasField("failure")
    report = await inspected(replica, lost)
    assert [entry.detail for entry in report.timeline if entry.event == "queued"] == ["put back by an operator"]
    assert [entry["kind"] for entry in second.journal.entries].count("optim") == 1


async def test_a_sample_its_leader_lost_sight_of_runs_after_a_requeue(
    replica: Replica, start_sampler: StartSampler, redis_client: Redis
) -> None:
    """Marked as running on a sampler that is gone: no leader looks at it any more."""
    await start_sampler()
    sampling = await base_sampler(replica, await session(replica))
    await result(replica, (await replica.scheduler.Submit(sample_request(sampling, 0))).request_id, seconds=LATE)
    fields = {"kind": "sample", "op": "sample", "state": "running", "tenant": ALICE, "parent": sampling, "seq": "1"}
    command_ = sample_request(sampling, 1).command.SerializeToString()
    more = {
        "request_id": f"{POOL}.{'a' * 32}.0",
        "arrival": "1",
        "units": "gone",
        "command": command_,
        "sequences": "1",
    }
    await redis_client.hset(keys.req(POOL, "a" * 32), mapping={**fields, **more})
    await redis_client.hset(keys.running_samples(POOL), "a" * 32, "gone")
    lost = f"{POOL}.{'a' * 32}.0"
    assert await requeued(replica, lost) == 1
    assert (await result(replica, lost, seconds=LATE)).HasField("sample")
    assert "queued" in events(await inspected(replica, lost))


# ---- looking -----------------------------------------------------------------------------------


async def test_leases_name_the_leader_the_replicas_and_who_expires_next(
    mesh: FrontMesh, replica: Replica, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    trainer = await start_trainer()
    await new_model(replica, await session(replica))
    names = [await session(replica) for _ in range(4)]
    for place, name in enumerate(names):
        await redis_client.zadd(keys.SESSIONS, {name: 1000 * time.time() - 1000 * (100 - place)})
    reply = await replica.admin.ListLeases(pb.ListLeasesRequest(limit=3))
    (pool,) = reply.pools
    assert (pool.leader, pool.term, pool.incarnation) == ("replica-0", 1, trainer.incarnation)
    assert 0 < pool.expires_in_ms <= 5000 and pool.fence > 0
    (known,) = reply.replicas
    assert (known.replica, known.layout) == ("replica-0", 1) and known.library.startswith("tinkermesh_1_")
    assert [one.session_id for one in reply.sessions] == names[:3]
    assert all(one.state == "open" and 0 < one.expires_in_ms <= 300_000 for one in reply.sessions)
    rest = await replica.admin.ListLeases(pb.ListLeasesRequest(limit=3, cursor=reply.next_cursor))
    assert [one.session_id for one in rest.sessions][0] == names[3] and not rest.pools
    async with refused(InvalidInput, "next_cursor"):
        await replica.admin.ListLeases(pb.ListLeasesRequest(cursor="x"))


async def test_durable_points_say_what_covers_a_model_and_what_would_be_replayed(
    mesh: FrontMesh, start_trainer: StartTrainer
) -> None:
    replica = await mesh.replica(durable_every_steps=2, durable_idle_seconds=0.0)
    await start_trainer()
    model = await new_model(replica, await session(replica))
    await stepped(replica, model, 1)
    (before,) = (await replica.admin.ListDurablePoints(pb.ListDurablePointsRequest())).points
    assert (before.base, before.covers, before.log_entries, before.steps_since) == ("init", 0, 1, 1)
    assert not before.HasField("due_in_ms") and before.directory == ""
    await stepped(replica, model, 2)

    async def covered() -> pb.DurablePointReport | None:
        (one,) = (await replica.admin.ListDurablePoints(pb.ListDurablePointsRequest(pool=POOL))).points
        return one if one.base == "durable" else None

    after = await eventually(covered, LATE)
    assert after is not None
    assert (after.covers, after.log_entries, after.steps_since, after.tenant_id) == (2, 0, 0, ALICE)
    assert after.directory.startswith(f"durable/{POOL}/{model}/_version_") and after.age_ms >= 0
    assert (mesh.store_root / after.directory).is_dir()
    async with refused(UnknownId, "nowhere"):
        await replica.admin.ListDurablePoints(pb.ListDurablePointsRequest(pool="nowhere"))


async def test_lists_of_models_and_requests_come_page_by_page(replica: Replica, start_trainer: StartTrainer) -> None:
    await start_trainer()
    session_id = await session(replica)
    models = sorted([await new_model(replica, session_id, seq) for seq in range(5)])
    calls = (
        (replica.admin.ListModels, pb.ListModelsRequest),
        (replica.admin.ListDurablePoints, pb.ListDurablePointsRequest),
    )
    for call, request in calls:
        seen, cursor, pages = [], "", 0
        while cursor or not pages:
            reply = await call(request(limit=2, cursor=cursor))
            seen += [one.model_id for one in (reply.models if hasattr(reply, "models") else reply.points)]
            cursor, pages = reply.next_cursor, pages + 1
        assert (seen, pages) == (models, 3)
        async with refused(InvalidInput, "next_cursor"):
            await call(request(cursor="no/"))
    everything = [one.request_id for one in (await replica.admin.ListFutures(pb.ListFuturesRequest())).futures]
    shown, cursor, pages = list[str](), "", 0
    while cursor or not pages:
        reply = await replica.admin.ListFutures(pb.ListFuturesRequest(limit=2, cursor=cursor))
        shown, cursor, pages = [*shown, *(one.request_id for one in reply.futures)], reply.next_cursor, pages + 1
    assert (shown, pages) == (everything, 3)
    async with refused(InvalidInput, "next_cursor"):
        await replica.admin.ListFutures(pb.ListFuturesRequest(cursor="double=x"))


async def test_snapshots_are_those_each_sampler_holds_and_a_silent_one_is_named(
    replica: Replica, start_trainer: StartTrainer, start_sampler: StartSampler
) -> None:
    await start_trainer()
    sampler = await start_sampler()
    model = await new_model(replica, await session(replica))
    request_id = (await replica.scheduler.Submit(save_for_sampler(model, 1))).request_id
    sampling = (await result(replica, request_id, seconds=LATE)).save.sampling_session_id
    await result(replica, (await replica.scheduler.Submit(sample_request(sampling, 1))).request_id, seconds=LATE)
    (held,) = (await replica.admin.ListSnapshots(pb.ListSnapshotsRequest())).samplers
    assert (held.pool, held.sampler_id, held.incarnation, held.problem) == (
        POOL,
        sampler.sampler_id,
        sampler.incarnation,
        "",
    )
    (one,) = held.snapshots
    assert one.loads == 1 and one.path
    assert model in one.path or model.partition(":")[0] in one.path
    await sampler.stop()
    for silent in (await replica.admin.ListSnapshots(pb.ListSnapshotsRequest(pool=POOL))).samplers:
        assert (list(silent.snapshots), silent.problem != "") == ([], True)
    async with refused(UnknownId, "nowhere"):
        await replica.admin.ListSnapshots(pb.ListSnapshotsRequest(pool="nowhere"))


# ---- GC dry run --------------------------------------------------------------------------------


async def garbage(replica: Replica, **fields: str | int) -> dict[str, pb.GcReport]:
    reply = await replica.admin.DryRunGc(pb.DryRunGcRequest(**fields))  # type: ignore[arg-type]
    return {report.kind: report for report in reply.reports}


async def test_a_dry_run_tells_what_would_go_and_why_and_deletes_nothing(owner: Owner, redis_client: Redis) -> None:
    replica = owner.replica
    path = await owner.save("soon", ttl=3600)
    await owner.save("stays")
    assert await garbage(replica) == {}
    before = {name async for name in redis_client.scan_iter()}
    later = await garbage(replica, within_seconds=7200)
    assert set(later) == {"checkpoint", "session"}
    (gone,) = later["checkpoint"].items
    assert (gone.subject, later["checkpoint"].total, gone.bytes > 0) == (path, 1, True)
    assert gone.due_unix_ms > 1000 * time.time()
    assert [one.subject for one in later["session"].items] == [owner.session]
    far = await garbage(replica, within_seconds=3 * 86_400, limit=1, pool=POOL)
    assert set(far) == {"result"}
    assert (far["result"].total, len(far["result"].items)) == (3, 1)
    assert parse_request_id(far["result"].items[0].subject).pool == POOL and "retention" in far["result"].why
    assert before <= {name async for name in redis_client.scan_iter()}
    assert await owner.names() == {"weights/soon", "weights/stays"}


async def test_a_dry_run_names_the_files_the_sweepers_would_delete(
    owner: Owner,
) -> None:
    """As both find them: the same functions decide."""
    root, model = owner.mesh.store_root, "nobody:train:0"
    (root / "payloads").mkdir(exist_ok=True)
    orphan = root / "payloads" / f"blob-{POOL}.{'b' * 32}.x"
    orphan.write_bytes(b"x")
    version = root / "durable" / POOL / model / "_version_u1_x"
    version.mkdir(parents=True)
    job = root / "jobs" / POOL / f"job-{'c' * 32}.{'d' * 8}"
    job.mkdir(parents=True)
    old = time.time() - 7200
    for path in (orphan, version, job):
        os.utime(path, (old, old))
    found = await garbage(owner.replica)
    assert [one.subject for one in found["orphan_payload_file"].items] == [orphan.name]
    assert [one.subject for one in found["orphan_durable_point"].items] == [f"durable/{POOL}/{model}/_version_u1_x"]
    assert [one.subject for one in found["orphan_job_directory"].items] == [f"jobs/{POOL}/{job.name}"]
    assert orphan.exists() and version.exists() and job.exists()


async def test_a_closed_model_goes_only_once_its_session_is_over(owner: Owner, redis_client: Redis) -> None:
    assert await evicted(owner.replica, owner.model, close=True, reason="over") in ("closed", "closing")

    async def closed() -> bool:
        return await redis_client.zscore(keys.closed(POOL), owner.model) is not None

    await eventually(closed, LATE)
    assert "closed_model" not in await garbage(owner.replica, within_seconds=2 * 86_400)
    await redis_client.hset(keys.model(POOL, owner.model), "session_over", "1")
    found = await garbage(owner.replica, within_seconds=2 * 86_400)
    assert [one.subject for one in found["closed_model"].items] == [owner.model]


# ---- drain -------------------------------------------------------------------------------------


async def test_drain_and_resume_leave_their_lines_in_the_audit_log(
    replica: Replica, start_trainer: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trainer = await start_trainer()
    await replica.admin.DrainTrainer(pb.DrainTrainerRequest(pool=POOL, trainer_id=trainer.trainer_id))
    await replica.admin.ResumeTrainer(pb.ResumeTrainerRequest(pool=POOL, trainer_id=trainer.trainer_id))
    async with refused(UnknownId, "nobody"):
        await replica.admin.DrainTrainer(pb.DrainTrainerRequest(pool=POOL, trainer_id="nobody"))
    lines = said(caplog)
    assert [(line["op"], line["decision"][:7], line["trainer"]) for line in lines] == [
        ("drain", "done", trainer.trainer_id),
        ("resume", "done", trainer.trainer_id),
        ("drain", "refused", "nobody"),
    ]
