"""What reaches a client while parts of the mesh misbehave: one settled answer, no 5xx bug, no address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from tests.doubles.eventually import eventually
from tests.doubles.journal import datum_counts, unit_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Body, Json, WireClient, batch
from tests.mesh import main_path

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

ACCEPT_SECONDS = 30.0


@pytest.fixture(scope="module")
def small_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    variables = {"TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "2", "TINKERMESH_GATEWAY_RETRY_SECONDS": "1"}
    with MeshProcesses(tmp_path_factory.mktemp("hostile"), variables=variables) as running:
        yield running


@pytest.fixture
async def client(small_mesh: MeshProcesses) -> AsyncIterator[WireClient]:
    client = WireClient([small_mesh.base_url], small_mesh.api_key)
    yield client
    await client.close()


async def answered_later(client: WireClient, path: str, body: Body) -> httpx.Response:
    """The first answer that is not to try again later: a 503, or a 429 as long as memory was full a moment ago."""

    async def posted() -> httpx.Response | None:
        answer = await client.post(path, body)
        return None if answer.status_code in (429, 503) else answer

    answer = await eventually(posted, ACCEPT_SECONDS)
    assert answer is not None
    return answer


async def accepted_later(client: WireClient, path: str, body: Body) -> Json:
    answer = await answered_later(client, path, body)
    assert answer.status_code == 200, answer
    return dict(answer.json())


async def test_a_sample_that_kills_samplers_fails_without_their_addresses_SEC_11(
    small_mesh: MeshProcesses, client: WireClient
) -> None:
    sampler = await main_path.base_sampler(client, await client.session())
    small_mesh.inject("sampler", [{"kind": "sample", "action": "die_before", "times": 0}])
    try:
        lost = await main_path.outcome(client, "/asample", main_path.sample(sampler, 0))
    finally:
        small_mesh.inject("sampler", [])
    assert lost["category"] == "server"
    assert "the sampler was lost" in lost["error"]
    assert not any(word in lost["error"] for word in ("127.0.0.1", "ipv4", "Socket", "Stream", "connect"))
    after = await main_path.outcome(client, "/asample", main_path.sample(sampler, 1))
    assert "sequences" in after


async def test_a_store_that_takes_no_writes_for_a_while_costs_nothing_GAP_16(
    small_mesh: MeshProcesses, client: WireClient
) -> None:
    """A full memory or disk: POSTs answer 503, what is read is still told, nobody ends, nothing runs twice."""
    model = await main_path.created(client, await client.session())
    redis = Redis.from_url(f"redis://{small_mesh.mesh.addresses.redis}/0")
    before = [await main_path.accepted(client, "/forward_backward", batch(model, seq, seq)) for seq in (1, 2)]
    await redis.config_set("maxmemory", 1)
    try:
        refused = await client.post("/create_session", {"sdk_version": "0.38.0"})
        later = asyncio.create_task(accepted_later(client, "/forward_backward", batch(model, 3, 3)))
        unknown = await client.post("/retrieve_future", {"request_id": f"double.{'0' * 32}.0"})
    finally:
        await redis.config_set("maxmemory", 0)
        await redis.aclose()
    assert (refused.status_code, unknown.status_code) == (503, 410)
    for answer in (*before, await later):
        assert "loss_fn_outputs" in await client.future(answer["request_id"])
    assert set(datum_counts(small_mesh.journal()).values()) == {1}
    assert set(unit_counts(small_mesh.journal()).values()) == {1}
    assert all(small_mesh.restarts(name) == 0 for name in ("scheduler-0", "gateway-0"))
    logs = Path(small_mesh.settings.logs)
    assert not [log.name for log in logs.iterdir() if "Traceback" in log.read_text()]


async def test_an_ended_session_names_its_remedy_once(client: WireClient) -> None:
    session = await client.session()
    model, sampler = await main_path.created(client, session), await main_path.base_sampler(client, session)
    ended = await client.post(f"/sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
    assert ended.status_code == 204
    for path, body in (("/forward_backward", batch(model, 1, 1)), ("/asample", main_path.sample(sampler, 0))):
        answer = await answered_later(client, path, body)
        assert answer.status_code == 400
        assert answer.json()["detail"].count("create a new session") == 1, answer.text
