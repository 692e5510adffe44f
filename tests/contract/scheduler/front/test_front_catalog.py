"""The Catalog service over real saves: ends come true, deletions finish, lists are what they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import catalog_pb2 as cat
from tinkermesh.v1 import catalog_pb2_grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, MissingResource
from services.common.tinker_path import parse_tinker_path
from services.scheduler.catalog import sessions
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    Replica,
    eventually,
    refused,
    result,
    save_for_sampler,
    session,
)
from tests.contract.scheduler.front.owner import Owner


async def test_a_settled_save_is_listed_with_what_it_was_given(owner: Owner) -> None:
    path = await owner.save("a", 3600, metadata='{"k":"v"}')
    listed = {one.path: one for one in await owner.listed(owner.model)}
    found = listed[path]
    assert (found.user_metadata_json, found.public) == ('{"k":"v"}', False)
    assert found.expires_unix_ms - found.created_unix_ms == 3_600_000 and found.size_bytes > 0
    run = await owner.replica.scheduler.GetTrainingRun(
        pb.GetTrainingRunRequest(tenant_id=ALICE, training_run_id=owner.model)
    )
    assert run.last_checkpoint == found


async def test_an_end_comes_true_and_the_files_go_API_11(owner: Owner) -> None:
    short, kept = await owner.save("short", 3600), await owner.save("kept")
    assert owner.files(short)
    await owner.ttl(short, 1)
    await eventually(lambda: not owner.files(short))
    assert await owner.names() == {"weights/kept"}
    async with refused(MissingResource):
        await owner.info(short)
    assert (await owner.info(kept)).base_model


async def test_an_end_that_is_taken_back_does_not_come(owner: Owner) -> None:
    kept, other = await owner.save("kept"), await owner.save("other")
    await owner.ttl(kept, 3)
    assert {one.path: bool(one.expires_unix_ms) for one in await owner.listed()} == {kept: True, other: False}
    await owner.ttl(kept, None)
    await owner.ttl(other, 3)  # ends later than the other would have
    await eventually(lambda: not owner.files(other))
    assert [(one.path, one.expires_unix_ms) for one in await owner.listed()] == [(kept, 0)]
    assert owner.files(kept)


async def test_a_deletion_that_broke_off_is_completed_by_the_sweep(owner: Owner, redis_client: Redis) -> None:
    path = await owner.save("a")
    store = owner.replica.app._parts.catalog._store  # type: ignore[union-attr]
    await store.doom(ALICE, parse_tinker_path(path))  # the process that deleted it died here
    async with refused(MissingResource):
        await owner.info(path)
    await eventually(lambda: not owner.files(path))
    row = keys.catalog_checkpoint(ALICE, path.removeprefix("tinker://"))
    await eventually(lambda: _absent(redis_client, row))


async def test_a_store_that_does_not_delete_ends_nobody(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = await owner.save("a"), await owner.save("b")
    denied: list[str] = []
    real = shutil.rmtree

    def refusing(directory: Path, **options: Any) -> None:
        denied.append(str(directory))
        raise PermissionError(13, "denied")

    monkeypatch.setattr(shutil, "rmtree", refusing)
    delete = pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=owner.model, checkpoint_id="weights/a")
    await owner.replica.scheduler.DeleteCheckpoint(delete)
    assert await owner.names() == {"weights/b"}
    await eventually(lambda: len(denied) > 1)  # the sweep tried again
    async with refused(MissingResource):
        await owner.info(path)
    monkeypatch.setattr(shutil, "rmtree", real)
    await eventually(lambda: not owner.files(path))
    assert (await owner.info(kept)).base_model


async def _absent(redis: Redis, key: str) -> bool:
    return not await redis.exists(key)


async def test_overwriting_makes_a_new_checkpoint_that_is_not_published(owner: Owner) -> None:
    path = await owner.save("a", 3600, metadata='{"n":"1"}')
    await owner.publish(path)
    assert await owner.save("a", overwrite=True, metadata='{"n":"2"}') == path
    found = (await owner.listed())[0]
    assert (found.public, found.expires_unix_ms, found.user_metadata_json) == (False, 0, '{"n":"2"}')
    async with refused(Forbidden):
        await owner.info(path, BOB)


async def test_a_name_is_free_again_once_it_was_deleted(owner: Owner) -> None:
    path = await owner.save("a")
    delete = pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=owner.model, checkpoint_id="weights/a")
    await owner.replica.scheduler.DeleteCheckpoint(delete)
    assert owner.files(path) == [] and await owner.listed() == []
    async with refused(MissingResource):
        await owner.replica.scheduler.DeleteCheckpoint(delete)
    assert await owner.save("a") == path
    assert await owner.names() == {"weights/a"}


async def test_what_is_public_is_read_by_all_and_changed_by_its_owner_only_SEC_05(owner: Owner) -> None:
    path = await owner.save("a")
    await owner.publish(path)
    assert (await owner.info(path, BOB)).path == path
    for attempt in (owner.ttl(path, 5, BOB), owner.publish(path, False, BOB), owner.listed(owner.model, BOB)):
        async with refused(Forbidden):
            await attempt
    bobs = await session(owner.replica, BOB)
    load = types.Command(create_from_checkpoint=types.CreateFromCheckpointBody(path=path))
    request = pb.SubmitRequest(tenant_id=BOB, create=pb.CreateKey(session_id=bobs), fingerprint=bytes(16), command=load)
    loaded = await result(owner.replica, (await owner.replica.scheduler.Submit(request)).request_id, BOB)
    assert loaded.model.path == path
    await owner.publish(path, False)
    async with refused(Forbidden):
        await owner.info(path, BOB)
    assert await owner.listed(tenant=BOB) == []


async def test_the_catalog_is_rebuilt_from_the_store(owner: Owner, redis_client: Redis) -> None:
    path, short = await owner.save("a", metadata='{"k":"v"}'), await owner.save("short", 3600)
    before = await owner.listed()
    async for name in redis_client.scan_iter("*:cat:*"):
        await redis_client.delete(name)
    assert await owner.listed() == [] and (await owner.info(path)).path == path
    reply = await owner.catalog.Rebuild(cat.RebuildRequest())
    assert (reply.runs, reply.checkpoints) == (1, 2)
    after = {one.path: one for one in await owner.listed()}
    assert set(after) == {one.path for one in before} and after[short].expires_unix_ms
    await owner.publish(path)
    await owner.catalog.Rebuild(cat.RebuildRequest())
    assert {one.path for one in await owner.listed() if one.public} == {path}


async def test_a_run_of_an_older_mesh_is_entered_when_its_owner_asks(owner: Owner, redis_client: Redis) -> None:
    path = await owner.save("a")
    async for name in redis_client.scan_iter("*:cat:*"):
        await redis_client.delete(name)
    async with refused(Forbidden):
        await owner.listed(owner.model, BOB)
    await owner.ttl(path, 3600)
    assert (await owner.listed(owner.model))[0].expires_unix_ms


async def test_a_session_stays_listed_when_it_is_over(owner: Owner) -> None:
    await owner.save("a")
    finish = pb.FinishSessionRequest(tenant_id=ALICE, session_id=owner.session, reason="errored", detail="why: not")
    await owner.replica.scheduler.FinishSession(finish)
    found = await owner.catalog.GetSession(cat.GetSessionRequest(tenant_id=ALICE, session_id=owner.session))
    assert (found.status, found.finish_reason, found.finish_detail) == ("finished", "errored", "why: not")
    assert list(found.training_run_ids) == [owner.model] and found.checkpoints_count == 1
    async with refused(Forbidden):
        await owner.catalog.GetSession(cat.GetSessionRequest(tenant_id=BOB, session_id=owner.session))


async def test_metadata_larger_than_a_message_comes_in_parts(replica: Replica, start_trainer: StartTrainer) -> None:
    catalog = catalog_pb2_grpc.CatalogStub(replica.channel)
    big = '{"k":"' + "x" * 60_000 + '"}'
    for _ in range(80):
        await replica.scheduler.CreateSession(pb.CreateSessionRequest(tenant_id=ALICE, user_metadata_json=big))
    parts = [part async for part in catalog.SearchSessions(cat.SearchSessionsRequest(tenant_id=ALICE, limit=200))]
    assert len(parts) > 4 and sum(len(part.sessions) for part in parts) == 80


async def test_a_search_that_looked_at_enough_says_where_to_look_on(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few sessions match, one call looks at a bounded number of them, and the calls together at all."""
    monkeypatch.setattr(sessions, "LOOKED_AT_ONCE", 2)
    monkeypatch.setattr(sessions, "LOOKED_AT_MOST", 4)
    catalog = catalog_pb2_grpc.CatalogStub(replica.channel)
    oldest = await session(replica)
    for _ in range(6):
        await session(replica)
    request, found = cat.SearchSessionsRequest(tenant_id=ALICE, session_id=oldest, limit=5), []
    for looked_at_all in (False, True):
        (part,) = [part async for part in catalog.SearchSessions(request)]
        found.append([one.session_id for one in part.sessions])
        assert (part.next_session_id == "") is looked_at_all
        request.before_unix_ms, request.before_session_id = part.next_unix_ms, part.next_session_id
    assert found == [[], [oldest]]


async def test_a_run_tells_when_it_was_last_asked_also_once_its_session_is_over(
    owner: Owner, redis_client: Redis
) -> None:
    request = pb.GetTrainingRunRequest(tenant_id=ALICE, training_run_id=owner.model)
    made = (await owner.replica.scheduler.GetTrainingRun(request)).last_request_unix_ms
    await owner.save("a")
    asked = int(await redis_client.hget(keys.model("double", owner.model), "last_request_ms") or 0)
    live = await owner.replica.scheduler.GetTrainingRun(request)
    assert made < asked <= live.last_request_unix_ms
    finish = pb.FinishSessionRequest(tenant_id=ALICE, session_id=owner.session, reason="completed")
    await owner.replica.scheduler.FinishSession(finish)
    await redis_client.delete(keys.model("double", owner.model))  # as when it is forgotten
    over = await owner.replica.scheduler.GetTrainingRun(request)
    assert over.last_request_unix_ms == over.last_checkpoint.created_unix_ms > made


async def test_unnamed_snapshots_are_listed_too(owner: Owner) -> None:
    owner.seq += 1
    reply = await owner.replica.scheduler.Submit(save_for_sampler(owner.model, owner.seq))
    path = (await result(owner.replica, reply.request_id)).save.path
    assert [one.path for one in await owner.listed()] == [path]
