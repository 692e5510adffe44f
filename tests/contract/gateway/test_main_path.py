"""Every operation once, and what reached the scheduler."""

from __future__ import annotations

import numpy as np
import pytest
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.datum_blocks import decode
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client, Tenants
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL


async def test_healthz_needs_no_key_API_01(client: Client) -> None:
    response = await client.http.get("/api/v1/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_client_config_tells_the_truth_API_10(client: Client) -> None:
    config = (await client.post("client/config", {"sdk_version": "0.38.0"})).json()
    assert config["pjwt_auth_enabled"] is False
    assert config["sample_use_retrieve_futures"] is True
    assert config["custom_loss_server_side"] is False
    assert config["sample_join_sampling_session"] is True
    assert config["fwdbwd_max_chunk_len"] == 1024
    dynamic = await client.post("client/dynamic_config", {"sdk_version": "0.38.0"})
    assert dynamic.json()["refresh_interval_sec"] == 300


async def test_capabilities_come_from_the_pools(client: Client) -> None:
    models = (await client.request("GET", "get_server_capabilities")).json()["supported_models"]
    assert models == [{"model_name": BASE_MODEL, "max_context_length": 256, "trainable": True, "sampleable": True}]


async def test_session_life(client: Client, scheduler: FakeScheduler, tenants: Tenants) -> None:
    body = {"tags": ["a"], "user_metadata": {"b": 1, "a": 2}, "sdk_version": "0.38.0", "type": "create_session"}
    created = await client.post("create_session", body, x_idempotency_key="key-1")
    session_id = created.json()["session_id"]
    assert "warning_message" not in created.json()
    sent = scheduler.session_requests[0]
    assert (sent.tenant_id, sent.idempotency_key, list(sent.tags)) == (tenants.first, "key-1", ["a"])
    assert sent.user_metadata_json == '{"a":2,"b":1}'
    beat = await client.post("session_heartbeat", {"session_id": session_id, "type": "session_heartbeat"})
    assert (beat.status_code, beat.json()) == (200, {"type": "session_heartbeat"})
    finish = {"reason": {"type": "success"}, "detail": None}
    assert (await client.post(f"sessions/{session_id}/finish", finish)).status_code == 204


@pytest.mark.parametrize(("version", "warned"), [("0.26.2", False), ("0.38.0", False), ("0.39.1", True), ("0.9", True)])
async def test_sdk_outside_the_tested_range_is_warned_not_refused_API_09(
    client: Client, version: str, warned: bool
) -> None:
    answer = (await client.post("create_session", {"sdk_version": version})).json()
    assert ("warning_message" in answer) is warned


async def test_create_model_and_its_info_API_12(client: Client, scheduler: FakeScheduler, session: str) -> None:
    body = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": BASE_MODEL,
        "lora_config": {"rank": 16, "seed": 3, "train_unembed": False, "train_mlp": True, "train_attn": True},
        "user_metadata": {"x": "y"},
        "type": "create_model",
    }
    created = (await client.post("create_model", body)).json()
    assert created["model_id"] == f"{session}:train:0"
    command = scheduler.last.command.create_model
    assert (command.base_model, command.layout.rank, command.layout.alpha, command.seed) == (BASE_MODEL, 16, 32.0, 3)
    assert not command.layout.train_unembed
    result = await client.post(
        "retrieve_future", {"request_id": created["request_id"]}, x_tinker_request_type="CreateModel"
    )
    assert result.json() == {"model_id": created["model_id"], "type": "create_model"}
    info = (await client.post("get_info", {"model_id": created["model_id"], "type": "get_info"})).json()
    assert info["model_data"] == {"arch": "double", "model_name": BASE_MODEL, "tokenizer_id": "/models/double/tiny"}
    assert (info["is_lora"], info["lora_rank"], info["model_name"]) == (True, 16, BASE_MODEL)


@pytest.mark.parametrize("name", [BASE_MODEL, f"{BASE_MODEL}:peft:262144", "double-alias", "/models/double/tiny/"])
async def test_base_model_matches_by_name_alias_suffix_and_path_VAL_15(
    client: Client, scheduler: FakeScheduler, session: str, name: str
) -> None:
    await client.post("create_model", {"session_id": session, "model_seq_id": 0, "base_model": name})
    assert scheduler.last.command.create_model.base_model == BASE_MODEL
    assert scheduler.last.command.create_model.layout.rank == 32


async def test_forward_backward_reaches_the_scheduler_as_datum_blocks(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    data = [forms.supervised([5, 6, 7], [1.0, 0.5, -2.0]), forms.supervised([9])]
    response = await client.protobuf(forms.to_protobuf(forms.request(model, 1, data), split=True))
    assert response.json()["model_id"] == model
    sent = scheduler.last
    assert (sent.request.model.model_id, sent.request.model.seq_id) == (model, 1)
    batch = sent.command.batch
    assert (batch.backward, batch.loss.loss_fn, list(batch.table.fields)) == (True, "cross_entropy", ["weights"])
    datums = decode(sent.payload, batch.table.lengths, batch.table.widths, batch.table.fields)
    assert [d.tokens.tolist() for d in datums] == [[5, 6, 7], [9]]
    assert [d.targets[:, 0].tolist() for d in datums] == [[6, 7, 7], [7]]
    assert datums[0].fields["weights"][:, 0].tolist() == [1.0, 0.5, -2.0]


async def test_batch_result_as_protobuf_and_as_json_agree_API_04_API_13(client: Client, model: str) -> None:
    data = [forms.supervised([5, 6, 7]), forms.supervised([9, 8])]
    request_id = (await client.protobuf(forms.to_protobuf(forms.request(model, 1, data)))).json()["request_id"]
    answer = await client.result(request_id, protobuf=True)
    assert answer.headers["content-type"] == "application/x-protobuf"
    output = wire.ForwardBackwardOutput.FromString(answer.content)
    (record,) = output.loss_fn_outputs
    assert (output.loss_fn_output_type, record.num_datums) == ("ArrayRecord", 2)
    logprobs = np.frombuffer(record.fields["logprobs"].data, "<f4")
    assert np.frombuffer(record.fields["logprobs"].offsets, "<i8").tolist() == [0, 12, 20]
    assert np.frombuffer(record.fields["loss:sum"].data, "<f4").tolist() == [3.0, 2.0]
    assert dict(output.metrics) == {"loss:sum": 5.0, "tokens:sum": 5.0}
    json = (await client.result(request_id)).json()
    assert [x for one in json["loss_fn_outputs"] for x in one["logprobs"]["data"]] == logprobs.tolist()
    assert json["metrics"] == dict(output.metrics)
    assert json["loss_fn_outputs"][1]["logprobs"]["shape"] == [2]


async def test_forward_only_selects_the_forward_op_API_03(client: Client, scheduler: FakeScheduler, model: str) -> None:
    body = forms.request(model, 1, [forms.supervised([5, 6])], forward_only=True)
    await client.protobuf(forms.to_protobuf(body))
    assert scheduler.last.command.batch.backward is False
    await client.post("forward_backward", forms.request(model, 2, [forms.supervised([5, 6])], forward_only=True))
    assert scheduler.last.command.batch.backward is False
    body = forms.request(model, 3, [forms.supervised([5, 6])])
    await client.post("forward", {"forward_input": body.pop("forward_backward_input"), **body})
    assert scheduler.last.command.batch.backward is False


async def test_adam_defaults_are_materialised_API_08(client: Client, scheduler: FakeScheduler, model: str) -> None:
    body = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.5}, "type": "optim_step"}
    response = await client.post("optim_step", body)
    adam = scheduler.last.command.optim_step.adam
    assert (adam.learning_rate, adam.beta1, adam.beta2, adam.eps) == (0.5, 0.9, 0.95, 1e-12)
    assert (adam.weight_decay, adam.grad_clip_norm) == (0.0, 0.0)
    result = await client.result(response.json()["request_id"])
    assert result.json() == {"metrics": {"grad_norm": 1.5, "step": 1.0}}


async def test_sampling_session_and_sampler_info(client: Client, session: str, model: str) -> None:
    path = f"tinker://{model}/sampler_weights/sw1"
    body = {"session_id": session, "sampling_session_seq_id": 5, "model_path": path}
    sampler_id = (await client.post("create_sampling_session", body)).json()["sampling_session_id"]
    info = (await client.request("GET", f"samplers/{sampler_id}")).json()
    assert info == {"sampler_id": sampler_id, "base_model": BASE_MODEL, "model_path": path}


async def test_sample_answers_one_sequence_id_per_sample_API_02(
    client: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    body = {
        "num_samples": 4,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}, {"type": "encoded_text", "tokens": [3]}]},
        "sampling_params": {"max_tokens": 5, "seed": 7, "stop": ["\n"], "temperature": 0.7, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": sampler,
        "seq_id": 656955740000000001,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
    }
    accepted = (await client.post("asample", body)).json()
    assert len(set(accepted["sample_sequence_ids"])) == 4
    sent = scheduler.last
    assert sent.request.sample.seq_id == 656955740000000001
    assert np.frombuffer(sent.command.sample.prompt_tokens, "<i4").tolist() == [1, 2, 3]
    assert list(sent.command.sample.stop.strings) == ["\n"]
    answer = await client.result(accepted["request_id"], protobuf=True)
    response = wire.SampleResponse.FromString(answer.content)
    assert [s.stop_reason for s in response.sequences] == [0, 1, 0, 1]
    assert all(len(s.tokens) == len(s.logprobs) for s in response.sequences)
    prompt = np.frombuffer(response.prompt_logprobs, "<f4")
    assert np.isnan(prompt[0]) and prompt[1:].tolist() == [-1.0, -2.0]
    assert (response.topk_prompt_logprobs.k, response.topk_prompt_logprobs.length) == (2, 3)
    json = (await client.result(accepted["request_id"])).json()
    assert json["prompt_logprobs"] == [None, -1.0, -2.0]
    assert json["topk_prompt_logprobs"] == [None, [[7, -0.5]], [[7, -0.5]]]
    assert json["sequences"][0]["stop_reason"] == "stop"


async def test_absent_max_tokens_is_the_rest_of_the_context(
    client: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    body = {"prompt": {"chunks": [{"tokens": [1, 2, 3]}]}, "sampling_session_id": sampler, "seq_id": 0}
    await client.post("asample", body)
    assert scheduler.last.command.sample.max_tokens == 253


async def test_unload_model_is_an_ordered_command_ADD_09(client: Client, scheduler: FakeScheduler, model: str) -> None:
    first = (await client.post("unload_model", {"model_id": model, "type": "unload_model"})).json()
    second = (await client.post("unload_model", {"model_id": model})).json()
    assert first == second
    assert scheduler.last.request.unload.model_id == model
    assert (await client.result(first["request_id"])).json() == {"model_id": model}


async def test_cancel_of_an_unknown_future_is_a_no_op_FUT_08(
    client: Client, scheduler: FakeScheduler, sampler: str
) -> None:
    assert (await client.post("cancel_future", {"request_id": f"double.{'0' * 32}.0"})).status_code == 200
    assert (await client.post("cancel_future", {"request_id": "what"})).status_code == 200
    body = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_session_id": sampler, "seq_id": 0}
    request_id = (await client.post("asample", body)).json()["request_id"]
    await client.post("cancel_future", {"request_id": request_id})
    assert scheduler.cancelled == [request_id]


async def test_telemetry_is_accepted_and_dropped(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    response = await client.post("telemetry", {"events": [{"x": "tml-SECRET"}], "session_id": "sessionless-1"})
    assert response.json() == {"status": "accepted"}


async def test_large_payload_is_streamed_in_frames_API_14(client: Client, scheduler: FakeScheduler, model: str) -> None:
    data = [forms.supervised([i % 500 for i in range(256)]) for _ in range(1000)]
    response = await client.protobuf(forms.to_protobuf(forms.request(model, 1, data)))
    assert "SubmitStream" in scheduler.calls
    assert len(scheduler.last.payload) == 1000 * 256 * 12
    answer = await client.result(response.json()["request_id"], protobuf=True)
    output = wire.ForwardBackwardOutput.FromString(answer.content)
    assert output.loss_fn_outputs[0].num_datums == 1000
    assert "GetResult" in scheduler.calls
