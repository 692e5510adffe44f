"""Copies of checkpoints: made once, whole, and only of what may be read."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, KeyConflict, UnknownId
from tests.contract.scheduler.front.mesh import (
    BOB,
    command,
    create_request,
    refused,
)
from tests.contract.scheduler.front.owner import Owner
from tests.unit.common.test_publish import renamed_once_listed


async def test_a_copy_is_made_once_per_key_and_outlives_its_source_IDEM_01(owner: Owner) -> None:
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


async def test_a_retry_into_another_project_is_refused_IDEM_09(owner: Owner) -> None:
    path = await owner.save("a")
    made = await owner.copy(path, idempotency_key="k", project_id="p")
    for project in ("q", ""):
        async with refused(KeyConflict, "another destination_project_id"):
            await owner.copy(path, idempotency_key="k", project_id=project)
    assert await owner.copy(path, idempotency_key="k", project_id="p") == made
    both = await asyncio.gather(
        *(owner.copy(path, idempotency_key="k2", project_id=f"p{n}") for n in range(2)), return_exceptions=True
    )
    assert sorted(isinstance(one, str) for one in both) == [False, True]


async def test_a_copy_beside_which_another_is_published_is_made_IDEM_01(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of copies asked for at once one may become whole while another looks for residues: nothing was deleted."""
    path = await owner.save("a")
    place = {"session_id": owner.session, "model_seq_id": 5}
    parent = owner.mesh.store_root.resolve() / "runs" / f"{owner.session}:train:5" / "weights"
    half = parent / f"_tmp_a_{'1' * 32}"
    half.mkdir(parents=True)
    with renamed_once_listed(monkeypatch, half) as renamed:
        made = await owner.copy(path, **place)
    assert made == f"tinker://{owner.session}:train:5/weights/a"
    assert renamed[-1].is_dir()
    assert (await owner.info(made)).base_model
