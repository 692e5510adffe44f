"""The numbers that name a command: which are taken, which are refused at once."""

from __future__ import annotations

from typing import Any

import pytest
from tinkermesh.wire.v1 import wire_pb2 as wire

from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

BAD_ORDINALS: list[Any] = [0, -3, "4", 2.0, True, None, 2**31, 2**63, 1e2, [1]]


BAD_COUNTERS: list[Any] = [-1, "4", 2.0, False, None, 2**63]


@pytest.mark.parametrize(
    "path", ["optim_step", "save_weights", "save_weights_for_sampler", "load_weights", "forward_backward"]
)
async def test_bad_training_seq_id_is_refused_at_once_IDEM_07(
    client: Client, scheduler: FakeScheduler, model: str, path: str
) -> None:
    for seq_id in BAD_ORDINALS:
        body = {"model_id": model, "seq_id": seq_id, "path": f"tinker://{model}/weights/x", "optimizer": True}
        if path == "forward_backward":
            body = forms.request(model, seq_id, [forms.supervised([1])])
        response = await client.post(path, body)
        assert response.status_code == 400, (seq_id, response.text)
        assert "seq_id" in response.json()["detail"]
    assert "Submit" not in scheduler.calls


@pytest.mark.parametrize("seq_id", [0, -3])
async def test_bad_protobuf_seq_id_is_refused_at_once_IDEM_07(client: Client, model: str, seq_id: int) -> None:
    response = await client.protobuf(wire.ForwardBackwardRequest(model_id=model, seq_id=seq_id).SerializeToString())
    assert response.status_code == 400
    assert "seq_id" in response.json()["detail"]


@pytest.mark.parametrize("value", BAD_COUNTERS, ids=repr)
async def test_bad_counters_are_refused_at_once_IDEM_07(
    client: Client, scheduler: FakeScheduler, session: str, sampler: str, value: Any
) -> None:
    bodies = {
        "create_model": {"session_id": session, "model_seq_id": value, "base_model": BASE_MODEL},
        "create_sampling_session": {
            "session_id": session,
            "sampling_session_seq_id": value,
            "base_model": BASE_MODEL,
        },
        "asample": {"sampling_session_id": sampler, "seq_id": value, "prompt": {"chunks": [{"tokens": [1]}]}},
    }
    for path, body in bodies.items():
        assert (await client.post(path, body)).status_code == 400, path
    assert not {"Submit", "CreateSamplingSession"} & set(scheduler.calls)


async def test_large_sample_seq_ids_stay_apart_IDEM_08(client: Client, scheduler: FakeScheduler, sampler: str) -> None:
    body = {"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [1]}]}}
    ids = [
        (await client.post("asample", {**body, "seq_id": seq})).json()["request_id"]
        for seq in (700000000000000001, 700000000000000002)
    ]
    assert len(set(ids)) == 2


async def test_zero_counters_are_accepted_IDEM_07(client: Client, session: str, sampler: str) -> None:
    body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": {"chunks": [{"tokens": [1]}]}}
    assert (await client.post("asample", body)).status_code == 200
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL}
    assert (await client.post("create_model", body)).status_code == 200


@pytest.mark.parametrize("body", [{}, {"model_id": "x"}, {"seq_id": 1}, {"session_id": "s"}, {"model_seq_id": 1}])
async def test_load_weights_needs_one_whole_address(client: Client, body: dict[str, Any]) -> None:
    response = await client.post("load_weights", {"path": "tinker://x", "optimizer": True, **body})
    assert response.status_code == 400
    assert "session_id and model_seq_id" in response.json()["detail"]


async def test_load_weights_with_both_addresses_is_refused(client: Client, session: str, model: str) -> None:
    body = {"path": "p", "session_id": session, "model_seq_id": 1, "model_id": model, "seq_id": 1}
    assert (await client.post("load_weights", body)).status_code == 400
