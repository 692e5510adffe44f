"""Copies of one checkpoint as an anxious client asks for them: at once, over all gateways, changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient
from tests.mesh.main_path import created, saved

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]


@pytest.fixture
async def client(mesh: MeshProcesses) -> AsyncIterator[WireClient]:
    made = WireClient([mesh.base_url], mesh.api_key)
    yield made
    await made.close()


async def test_copies_asked_for_at_once_are_one_copy_IDEM_01(client: WireClient) -> None:
    session = await client.session()
    source = await saved(client, await created(client, session), 1, "ck")
    for number in range(10, 20):
        body = {"source_path": source, "session_id": session, "model_seq_id": number}
        answers = await asyncio.gather(*(client.post("/copy_weights", body) for _ in range(8)))
        assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
        copied = answers[0].json()["tinker_path"]
        assert (await client.post("/weights_info", {"tinker_path": copied})).status_code == 200


async def test_a_retry_that_asks_for_another_copy_is_refused_IDEM_09(client: WireClient) -> None:
    session = await client.session()
    model = await created(client, session)
    source, other = await saved(client, model, 1, "ck"), await saved(client, model, 2, "other")
    body = {"source_path": source, "session_id": session, "model_seq_id": 10, "ttl_seconds": 3600}
    first = await client.post("/copy_weights", body)
    assert first.status_code == 200, first.text
    without = {name: value for name, value in body.items() if name != "ttl_seconds"}
    for changed, field in (
        ({**body, "source_path": other}, "other"),
        ({**body, "ttl_seconds": 7200}, "ttl_seconds"),
        (without, "ttl_seconds"),
    ):
        refused = await client.post("/copy_weights", changed)
        assert refused.status_code == 400, refused.text
        assert field in refused.json()["detail"]
    again = await client.post("/copy_weights", body)
    assert (again.status_code, again.text) == (200, first.text)
