"""Two tenants on one mesh: they share passes and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.doubles.admin import list_pools
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.main_path import base_sampler, created, sample

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
OTHER_KEY = "tml-other-tenant"


@pytest.fixture
async def tenants(mesh: MeshProcesses) -> AsyncIterator[tuple[WireClient, WireClient]]:
    mesh.add_key(OTHER_KEY)
    pair = WireClient([mesh.base_url], mesh.api_key), WireClient([mesh.base_url], OTHER_KEY)
    yield pair
    for client in pair:
        await client.close()


async def new_model(client: WireClient) -> tuple[str, str]:
    session = await client.session()
    return session, await created(client, session)


async def test_datums_of_two_tenants_share_a_pass_PACK_02(
    mesh: MeshProcesses, tenants: tuple[WireClient, WireClient]
) -> None:
    models = [await new_model(client) for client in tenants]
    mesh.inject("trainer", [{"kind": "pass", "action": "delay_before", "seconds": 0.3, "times": 1}])
    before = list_pools(mesh.scheduler)[0]
    # The first batch holds the trainer; those behind it are packed together.
    sent = []
    for seq_id in (1, 2, 3):
        for client, (_, model) in zip(tenants, models, strict=True):
            sent.append((client, await client.post("/forward_backward", batch(model, seq_id, seed=seq_id))))
    for client, answer in sent:
        assert "error" not in await client.future(answer.json()["request_id"])
    after = list_pools(mesh.scheduler)[0]
    assert after.shared_units_total > before.shared_units_total
    assert after.datums_total - before.datums_total == 18


async def test_foreign_ids_are_refused_on_every_path_SEC_05(
    mesh: MeshProcesses, tenants: tuple[WireClient, WireClient]
) -> None:
    mine, other = tenants
    session, model = await new_model(mine)
    sent = (await mine.post("/forward_backward", batch(model, 1, seed=1))).json()["request_id"]
    attempts = {
        "/forward_backward": batch(model, 2, seed=1),
        "/optim_step": {"model_id": model, "seq_id": 2, "adam_params": {"learning_rate": 1.0}, "type": "optim_step"},
        "/save_weights": {"model_id": model, "seq_id": 2, "path": "x", "type": "save_weights"},
        "/get_info": {"model_id": model, "type": "get_info"},
        "/unload_model": {"model_id": model, "type": "unload_model"},
        "/retrieve_future": {"request_id": sent},
    }
    answers = await asyncio.gather(*(other.post(path, body) for path, body in attempts.items()))
    assert {path: a.status_code for path, a in zip(attempts, answers, strict=True)} == dict.fromkeys(attempts, 403)
    assert "error" not in await mine.future(sent)
    beat = await other.post("/session_heartbeat", {"session_id": session, "type": "session_heartbeat"})
    assert beat.status_code == 403


async def test_unknown_key_is_401_and_not_echoed_SEC_01_SEC_02(mesh: MeshProcesses) -> None:
    stranger = WireClient([mesh.base_url], "tml-stranger-secret")
    answer = await stranger.post("/get_info", {"model_id": "x", "type": "get_info"})
    assert answer.status_code == 401
    assert "tml-stranger-secret" not in answer.text
    await stranger.close()


async def settled_numbers(client: WireClient, sampler: str, seq_ids: range) -> list[int]:
    """The client's cursor after each of its samples."""
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    cursors = [0]
    for seq_id in seq_ids:
        sent = await client.post("/asample", sample(sampler, seq_id))
        await client.future(sent.json()["request_id"])
        answer = await client.post("/retrieve_futures", {"target": target, "prev_cursor": cursors[-1], "timeout": 0})
        cursors.append(answer.json()["cursor"])
    return cursors[1:]


async def test_a_cursor_does_not_count_what_other_tenants_sample_SEC_11(
    tenants: tuple[WireClient, WireClient],
) -> None:
    mine, other = tenants
    samplers = [await base_sampler(client, await client.session()) for client in tenants]
    [before] = await settled_numbers(mine, samplers[0], range(1))
    await settled_numbers(other, samplers[1], range(5))
    assert await settled_numbers(mine, samplers[0], range(1, 4)) == [before + 1, before + 2, before + 3]
