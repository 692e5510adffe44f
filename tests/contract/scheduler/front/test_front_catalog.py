"""The Catalog service over real saves: ends come true, deletions finish, copies and downloads are what they say."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import catalog_pb2 as cat
from tinkermesh.v1 import catalog_pb2_grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, InvalidInput, KeyConflict, MissingResource, UnknownId
from services.common.store import META_FILE, public_directory
from services.common.tinker_path import parse_tinker_path
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartTrainer
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    FrontMesh,
    Replica,
    command,
    create_request,
    eventually,
    refused,
    result,
    save_for_sampler,
    session,
)


class Owner:
    """Alice's model, and the catalog as a gateway calls it."""

    def __init__(self, mesh: FrontMesh, replica: Replica) -> None:
        self.mesh, self.replica = mesh, replica
        self.catalog = catalog_pb2_grpc.CatalogStub(replica.channel)
        self.model, self.session, self.seq = "", "", 0

    async def start(self) -> Owner:
        self.session = await session(self.replica)
        reply = await self.replica.scheduler.Submit(create_request(self.session))
        await result(self.replica, reply.request_id)
        self.model = reply.model_id
        return self

    async def done(self, **body: Any) -> types.SaveResult:
        self.seq += 1
        reply = await self.replica.scheduler.Submit(command(self.model, self.seq, types.Command(**body)))
        answer = await result(self.replica, reply.request_id)
        assert answer.HasField("save"), answer
        return answer.save

    async def save(self, name: str, ttl: int | None = None, *, overwrite: bool = False, metadata: str = "") -> str:
        body = types.SaveWeightsBody(name=name, ttl_seconds=ttl, overwrite=overwrite, user_metadata_json=metadata)
        return (await self.done(save_weights=body)).path

    async def export(self, name: str) -> types.SaveResult:
        return await self.done(save_external=types.SaveExternalBody(name=name))

    async def listed(self, run: str = "", tenant: str = ALICE) -> list[pb.CheckpointInfo]:
        request = cat.ListCheckpointsRequest(tenant_id=tenant, training_run_id=run, limit=100)
        parts = [part async for part in self.catalog.ListCheckpoints(request)]
        found = [one for part in parts for one in part.checkpoints]
        assert parts[-1].total_count == len(found)
        return found

    async def names(self) -> set[str]:
        return {one.checkpoint_id for one in await self.listed()}

    async def info(self, path: str, tenant: str = ALICE) -> pb.WeightsInfo:
        return await self.replica.scheduler.GetWeightsInfo(pb.GetWeightsInfoRequest(tenant_id=tenant, path=path))

    async def ttl(self, path: str, seconds: int | None, tenant: str = ALICE) -> None:
        await self.catalog.SetCheckpointTtl(
            cat.SetCheckpointTtlRequest(tenant_id=tenant, path=path, ttl_seconds=seconds)
        )

    async def publish(self, path: str, public: bool = True, tenant: str = ALICE) -> None:
        await self.catalog.SetCheckpointPublic(
            cat.SetCheckpointPublicRequest(tenant_id=tenant, path=path, public=public)
        )

    async def copy(self, path: str, tenant: str = ALICE, **fields: Any) -> str:
        request = cat.CopyCheckpointRequest(tenant_id=tenant, source_path=path, **fields)
        return (await self.catalog.CopyCheckpoint(request)).path

    def files(self, path: str) -> list[Path]:
        public = self.mesh.store_root / public_directory(parse_tinker_path(path))
        return sorted([*public.parent.glob(public.name), *public.parent.glob(f"*_{public.name}_*")])


@pytest.fixture
async def owner(mesh: FrontMesh, replica: Replica, start_trainer: StartTrainer) -> Owner:
    await start_trainer()
    return await Owner(mesh, replica).start()


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


async def test_an_end_comes_true_and_the_files_go_CKPT(owner: Owner) -> None:
    short, kept = await owner.save("short", 1), await owner.save("kept")
    assert owner.files(short)
    await eventually(lambda: not owner.files(short))
    assert await owner.names() == {"weights/kept"}
    async with refused(MissingResource):
        await owner.info(short)
    assert (await owner.info(kept)).base_model


async def test_an_end_that_is_taken_back_does_not_come(owner: Owner) -> None:
    path = await owner.save("a", 3600)
    await owner.ttl(path, None)
    assert (await owner.listed())[0].expires_unix_ms == 0
    await owner.ttl(path, 60)
    assert (await owner.listed())[0].expires_unix_ms > 0


async def test_a_deletion_that_broke_off_is_completed_by_the_sweep(owner: Owner, redis_client: Redis) -> None:
    path = await owner.save("a")
    store = owner.replica.app._parts.catalog._store  # type: ignore[union-attr]
    await store.doom(ALICE, parse_tinker_path(path))  # the process that deleted it died here
    async with refused(MissingResource, "deleted"):
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


# ---- copies --------------------------------------------------------------------------------


async def test_a_copy_is_made_once_per_key_and_outlives_its_source_IDEM(owner: Owner) -> None:
    path = await owner.save("a", metadata='{"k":"v"}')
    copies = [await owner.copy(path, idempotency_key="k", project_id="p") for _ in range(3)]
    assert len(set(copies)) == 1 and not copies[0].startswith(f"tinker://{owner.model}")
    other = await owner.save("b")
    async with refused(KeyConflict):
        await owner.copy(other, idempotency_key="k", project_id="p")
    assert await owner.copy(path, idempotency_key="k2", project_id="p") != copies[0]
    shutil.rmtree(owner.mesh.store_root / "runs" / owner.model)
    assert (await owner.info(copies[0])).base_model
    found = {one.path: one for one in await owner.listed()}
    assert found[copies[0]].user_metadata_json == '{"k":"v"}'


async def test_a_copy_in_a_session_takes_its_number_for_good(owner: Owner) -> None:
    path = await owner.save("a")
    place = {"session_id": owner.session, "model_seq_id": 5}
    assert (
        await owner.copy(path, **place)
        == await owner.copy(path, **place)
        == f"tinker://{owner.session}:train:5/weights/a"
    )
    async with refused(KeyConflict, "names a copy"):
        await owner.replica.scheduler.Submit(create_request(owner.session, 5))
    async with refused(KeyConflict, "already names a model"):
        await owner.copy(path, session_id=owner.session, model_seq_id=0)
    async with refused(UnknownId):
        await owner.replica.scheduler.Submit(command(f"{owner.session}:train:5", 1, types.Command()))
    async with refused(Forbidden):
        await owner.copy(path, BOB, **place)


async def test_a_foreign_checkpoint_is_copied_only_when_it_is_public_SEC_05(owner: Owner) -> None:
    path = await owner.save("a")
    async with refused(Forbidden):
        await owner.copy(path, BOB, project_id="p")
    await owner.publish(path)
    copy = await owner.copy(path, BOB, project_id="p", ttl_seconds=60)
    found = (await owner.listed(tenant=BOB))[0]
    assert (found.path, found.public) == (copy, False) and found.expires_unix_ms
    async with refused(Forbidden):
        await owner.info(copy)


# ---- downloads -----------------------------------------------------------------------------


async def test_a_download_names_its_files_but_not_the_seal(owner: Owner) -> None:
    export = await owner.export("x")
    assert export.path.endswith("/external_weights/x") and export.size_bytes
    told = await owner.catalog.DescribeDownload(cat.DescribeDownloadRequest(tenant_id=ALICE, path=export.path))
    assert [file.name for file in told.files] == ["state.json"]
    on_disk = (owner.mesh.store_root / public_directory(parse_tinker_path(export.path)) / "state.json").read_bytes()
    request = cat.ReadFileRequest(path=export.path, version=told.version, file="state.json")
    assert await _data(owner.catalog.ReadFile(request)) == on_disk
    request.offset, request.length = 3, 4
    assert await _data(owner.catalog.ReadFile(request)) == on_disk[3:7]
    archive = await _data(owner.catalog.ReadArchive(cat.ReadArchiveRequest(path=export.path, version=told.version)))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile("state.json")
        assert tar.getnames() == ["state.json"] and member is not None and member.read() == on_disk


async def _data(call: Any) -> bytes:
    return b"".join([frame.data async for frame in call])


@pytest.mark.parametrize("file", [META_FILE, "../x/meta.json", "/etc/passwd", "", "link", "nothing"])
async def test_only_listed_files_are_read_SEC_06(owner: Owner, file: str) -> None:
    path = (await owner.export("x")).path
    directory = (owner.mesh.store_root / public_directory(parse_tinker_path(path))).resolve()
    (directory / "link").symlink_to(owner.mesh.pepper_file)
    async with refused(MissingResource):
        await _data(owner.catalog.ReadFile(cat.ReadFileRequest(path=path, version=directory.name, file=file)))


@pytest.mark.parametrize(
    "version", ["", "..", "x", "_version_x_", "_version_y_00", "../weights/_version_x_00", "_tmp_x_00"]
)
async def test_only_versions_of_the_named_checkpoint_are_read_SEC_06(owner: Owner, version: str) -> None:
    path = (await owner.export("x")).path
    async with refused(MissingResource):
        await _data(owner.catalog.ReadFile(cat.ReadFileRequest(path=path, version=version, file="state.json")))


async def test_a_deleted_checkpoints_links_end_with_it(owner: Owner) -> None:
    path = (await owner.export("x")).path
    told = await owner.catalog.DescribeDownload(cat.DescribeDownloadRequest(tenant_id=ALICE, path=path))
    await owner.ttl(path, 1)
    read = cat.ReadFileRequest(path=path, version=told.version, file="state.json")
    await eventually(lambda: not owner.files(path))
    async with refused(MissingResource):
        await _data(owner.catalog.ReadFile(read))


async def test_links_of_overwritten_versions_end_with_the_checkpoint_too(owner: Owner) -> None:
    path = await owner.save("a")
    told = await owner.catalog.DescribeDownload(cat.DescribeDownloadRequest(tenant_id=ALICE, path=path))
    read = cat.ReadFileRequest(path=path, version=told.version, file="state.json")
    await owner.save("a", overwrite=True)
    assert await _data(owner.catalog.ReadFile(read))
    delete = pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=owner.model, checkpoint_id="weights/a")
    await owner.replica.scheduler.DeleteCheckpoint(delete)
    async with refused(MissingResource):
        await _data(owner.catalog.ReadFile(read))


async def test_an_export_is_neither_loaded_nor_sampled_from(owner: Owner) -> None:
    path = (await owner.export("x")).path
    request = pb.CreateSamplingSessionRequest(tenant_id=ALICE, session_id=owner.session, model_path=path)
    async with refused(InvalidInput, "external_weights"):
        await owner.replica.scheduler.CreateSamplingSession(request)
    owner.seq += 1
    load = types.Command(load_weights=types.LoadWeightsBody(path=path))
    reply = await owner.replica.scheduler.Submit(command(owner.model, owner.seq, load))
    assert "an export" in (await result(owner.replica, reply.request_id)).failure.message


# ---- sessions ------------------------------------------------------------------------------


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


async def test_unnamed_snapshots_are_listed_too(owner: Owner) -> None:
    owner.seq += 1
    reply = await owner.replica.scheduler.Submit(save_for_sampler(owner.model, owner.seq))
    path = (await result(owner.replica, reply.request_id)).save.path
    assert [one.path for one in await owner.listed()] == [path]
