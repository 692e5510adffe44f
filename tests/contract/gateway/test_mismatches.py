"""What is well-formed by itself and does not fit what it is sent with or sent to."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Pending, UnknownId
from services.gateway.sdk import version_warning
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import BASE_MODEL, FakeScheduler


async def test_sampling_session_of_a_snapshot_names_its_base_model_or_none(
    client: Client, session: str, model: str, scheduler: FakeScheduler
) -> None:
    other = types.PoolFacts()
    other.CopyFrom(scheduler.pools[0])
    other.pool, other.base_model = "other", "org/other"
    del other.aliases[:]
    scheduler.pools.append(other)
    path = f"tinker://{model}/sampler_weights/x"
    body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
    assert (await client.post("create_sampling_session", body)).status_code == 200
    assert (await client.post("create_sampling_session", {**body, "base_model": BASE_MODEL})).status_code == 200
    refused = await client.post("create_sampling_session", {**body, "base_model": "org/other"})
    assert refused.status_code == 400
    assert "org/other" in refused.json()["detail"] and BASE_MODEL in refused.json()["detail"]


async def test_pool_without_a_trainer_trains_nothing_VAL_15(
    client: Client, session: str, scheduler: FakeScheduler
) -> None:
    scheduler.pools[0].max_rank = 0
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL}
    assert "its pool has no trainer" in await client.failure(await client.post("create_model", body))


async def test_model_cannot_be_loaded_for_an_optimizer_this_mesh_lacks(
    client: Client, session: str, model: str
) -> None:
    body = {"session_id": session, "model_seq_id": 0, "path": f"tinker://{model}/weights/x"}
    loaded = await client.post("load_weights", {**body, "optimizer_config": {"type": "muon"}})
    assert "optimizer 'muon' is not supported" in await client.failure(loaded)


async def test_older_forward_route_takes_protobuf_and_never_trains_API_03(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    body = forms.to_protobuf(forms.request(model, 1, [forms.supervised([5, 6, 7])]))
    response = await client.post("forward", body, content_type="application/x-protobuf")
    assert response.status_code == 200, response.text
    assert not scheduler.last.command.batch.backward


@pytest.mark.parametrize("request_id", ["", "x", "a.b", "../../x", "pool..0", "pool.%s.0" % ("f" * 400)])
async def test_poll_of_what_is_no_request_id_is_410(client: Client, request_id: str) -> None:
    answer = await client.result(request_id)
    assert (answer.status_code, answer.json()["error"]) == (410, "gone")


@pytest.mark.parametrize("run_id", ["x", "a:train:0", "%00"])
async def test_training_run_that_cannot_be_is_404(client: Client, run_id: str) -> None:
    assert (await client.request("GET", f"training_runs/{run_id}")).status_code == 404


async def large_result(client: Client, scheduler: FakeScheduler, model: str) -> str:
    """A settled request whose result does not fit into the event that tells of it."""
    data: list[dict[str, Any]] = [forms.supervised([5, 6, 7] * 13)] * 400
    response = await client.post("forward_backward", forms.request(model, 1, data))
    assert response.status_code == 200, response.text
    assert scheduler.last.result is not None and scheduler.last.result.ByteSize() > 32 * 1024
    return str(response.json()["request_id"])


async def test_result_that_is_gone_between_its_event_and_its_fetch_is_410(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    request_id = await large_result(client, scheduler, model)
    scheduler.failures.append(UnknownId("unknown"))
    assert (await client.result(request_id)).status_code == 410
    assert (await client.result(request_id)).status_code == 200


async def test_result_that_cannot_be_fetched_yet_is_408(client: Client, scheduler: FakeScheduler, model: str) -> None:
    request_id = await large_result(client, scheduler, model)
    scheduler.failures.append(Pending("not yet"))
    answer = await client.result(request_id)
    assert (answer.status_code, answer.json()["type"]) == (408, "try_again")
    assert (await client.result(request_id)).status_code == 200


def test_version_that_is_none_warns_of_nothing() -> None:
    assert version_warning("") == version_warning("next") == ""
    assert "outside the range" in version_warning("99.0")


async def test_a_scheduler_that_hangs_does_not_hold_a_large_submission_MESH_02(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.silences["SubmitStream"] = 1
    body = forms.to_protobuf(forms.request(model, 1, [forms.supervised(list(range(256)))] * 1000))
    began = time.monotonic()
    response = await client.protobuf(body)
    assert response.status_code == 200, response.text
    assert scheduler.calls.count("SubmitStream") == 2 and len(scheduler.submitted) == 1
    assert len(scheduler.last.payload) > 1 << 20
    assert 1.0 < time.monotonic() - began < 6.0


async def test_a_scheduler_that_hangs_does_not_hold_a_large_result_MESH_02(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    request_id = await large_result(client, scheduler, model)
    scheduler.silences["GetResult"] = 1
    began = time.monotonic()
    assert (await client.result(request_id)).status_code == 200
    assert 1.0 < time.monotonic() - began < 6.0
