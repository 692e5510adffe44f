"""Downloads and exports: the files of one version, nothing beside them, nothing afterwards."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from tinkermesh.v1 import catalog_pb2 as cat
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, MissingResource
from services.common.store import META_FILE, public_directory
from services.common.tinker_path import parse_tinker_path
from tests.contract.scheduler.front.mesh import (
    ALICE,
    command,
    eventually,
    refused,
    result,
)
from tests.contract.scheduler.front.owner import Owner


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


async def test_a_new_checkpoint_of_the_name_brings_no_old_link_back(owner: Owner) -> None:
    """An overwritten version's files stay for a minute; its checkpoint was deleted meanwhile."""
    path = await owner.save("a")
    told = await owner.catalog.DescribeDownload(cat.DescribeDownloadRequest(tenant_id=ALICE, path=path))
    read = cat.ReadFileRequest(path=path, version=told.version, file="state.json")
    await owner.save("a", overwrite=True)
    await owner.save("a", overwrite=True)
    assert await _data(owner.catalog.ReadFile(read)), "overwriting ends no link"
    delete = pb.DeleteCheckpointRequest(tenant_id=ALICE, training_run_id=owner.model, checkpoint_id="weights/a")
    await owner.replica.scheduler.DeleteCheckpoint(delete)
    await owner.save("a")
    assert any(file.name == told.version for file in owner.files(path)), "its files are still there"
    async with refused(MissingResource, "was deleted"):
        await _data(owner.catalog.ReadFile(read))
    await owner.save("a", overwrite=True)
    async with refused(MissingResource, "was deleted"):
        await _data(owner.catalog.ReadFile(read))


async def test_an_expired_checkpoints_links_do_not_come_back_with_its_successor(owner: Owner) -> None:
    path = await owner.save("a")
    told = await owner.catalog.DescribeDownload(cat.DescribeDownloadRequest(tenant_id=ALICE, path=path))
    read = cat.ReadFileRequest(path=path, version=told.version, file="state.json")
    await owner.save("a", 1, overwrite=True)

    async def over() -> bool:
        return not await owner.listed()

    await eventually(over)
    await owner.save("a", overwrite=True)
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
