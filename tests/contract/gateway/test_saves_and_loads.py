"""Saves, loads and what is asked about saved weights: from HTTP to the scheduler and back."""

from __future__ import annotations

import pytest

from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL


async def test_saves_and_loads(client: Client, scheduler: FakeScheduler, model: str, session: str) -> None:
    save = {"model_id": model, "path": "ck1", "seq_id": 1, "ttl_seconds": 3600, "overwrite": True}
    answer = await client.result((await client.post("save_weights", save)).json()["request_id"])
    path = f"tinker://{model}/weights/ck1"
    assert answer.json() == {"path": path, "type": "save_weights"}
    assert scheduler.last.command.save_weights.ttl_seconds == 3600
    assert scheduler.last.command.save_weights.overwrite
    load = await client.post("load_weights", {"model_id": model, "seq_id": 2, "path": path, "optimizer": True})
    answer = await client.result(load.json()["request_id"])
    assert answer.json() == {"path": path, "model_id": model, "type": "load_weights"}
    body = {"session_id": session, "model_seq_id": 4, "path": path, "optimizer": False, "user_metadata": {"a": "b"}}
    created = await client.post("load_weights", body)
    assert created.json()["model_id"] == f"{session}:train:4"
    assert scheduler.last.request.WhichOneof("key") == "create"
    assert scheduler.last.command.create_from_checkpoint.user_metadata_json == '{"a":"b"}'


@pytest.mark.parametrize("route", ["create_model", "load_weights"])
async def test_pool_that_registered_a_moment_ago_is_found(
    client: Client, scheduler: FakeScheduler, model: str, session: str, route: str
) -> None:
    await client.request("GET", "get_server_capabilities")  # the gateway now remembers the pools for a while
    late = scheduler.pools[0].__class__()
    late.CopyFrom(scheduler.pools[0])
    late.pool, late.base_model = "late", "org/late"
    del late.aliases[:]
    scheduler.pools.append(late)
    body = {"session_id": session, "model_seq_id": 5, "base_model": "org/late"}
    await client.post(route, body if route == "create_model" else {**body, "path": f"tinker://{model}/weights/x"})
    command = scheduler.last.command
    assert not command.rejected
    assert getattr(command, str(command.WhichOneof("body"))).base_model == "org/late"


async def test_access_token_reaches_the_scheduler_only_as_digest_SEC_04(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    path = f"tinker://{model}/weights/ck1"
    body = {"model_id": model, "seq_id": 1, "path": path, "optimizer": True, "weights_access_token": "tml-SECRET-token"}
    await client.post("load_weights", body)
    sent = scheduler.last.request.SerializeToString()
    assert b"SECRET" not in sent
    assert len(scheduler.last.command.load_weights.weights_access_digest) == 64


async def test_sampler_saves_named_and_unnamed_SNAP_03(client: Client, model: str, session: str) -> None:
    named = {"model_id": model, "path": "sw1", "kind": "snapshot", "seq_id": 1}
    answer = await client.result((await client.post("save_weights_for_sampler", named)).json()["request_id"])
    assert answer.json() == {"path": f"tinker://{model}/sampler_weights/sw1", "type": "save_weights_for_sampler"}
    unnamed = {"model_id": model, "sampling_session_seq_id": 3, "kind": "snapshot", "seq_id": 2}
    answer = await client.result((await client.post("save_weights_for_sampler", unnamed)).json()["request_id"])
    sampler_id = f"{session}:sample:3:double"
    assert answer.json() == {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}


async def test_retried_unnamed_save_with_a_new_sampling_key_is_the_same_command_IDEM_13(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    body = {"model_id": model, "sampling_session_seq_id": 0, "kind": "snapshot", "seq_id": 3}
    first = await client.post("save_weights_for_sampler", body)
    second = await client.post("save_weights_for_sampler", {**body, "sampling_session_seq_id": 1})
    assert first.json() == second.json()
    assert len(scheduler.submitted) == 1


async def test_weights_info_and_training_run(client: Client, model: str) -> None:
    info = (await client.post("weights_info", {"tinker_path": f"tinker://{model}/weights/ck1"})).json()
    assert info == {
        "base_model": BASE_MODEL,
        "is_lora": True,
        "lora_rank": 8,
        "train_unembed": False,
        "train_mlp": True,
        "train_attn": True,
    }
    run = (await client.request("GET", f"training_runs/{model}?access_scope=owned")).json()
    assert (run["training_run_id"], run["lora_rank"], run["corrupted"]) == (model, 8, False)
    assert run["user_metadata"] == {"renderer_name": "role_colon"}
    assert run["last_checkpoint"]["checkpoint_type"] == "training"
    assert run["last_sampler_checkpoint"] is None


async def test_delete_checkpoint_takes_a_literal_slash(client: Client, scheduler: FakeScheduler, model: str) -> None:
    response = await client.request("DELETE", f"training_runs/{model}/checkpoints/weights/ck1")
    assert response.status_code == 204
    assert scheduler.deleted == [(model, "weights/ck1")]
