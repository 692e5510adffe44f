"""Broken content of every other ordered command, of create_model and of asample."""

# ruff: noqa: E501 - one case per line

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

LORA: list[tuple[str, dict[str, Any], str]] = [
    ("rank 0", {"rank": 0}, r"lora_config.rank must lie in \[1, 32\], not 0"),
    ("rank 33", {"rank": 33}, r"\[1, 32\], not 33"),
    ("rank text", {"rank": "8"}, r"Expected `int`, got `str` - at `\$.lora_config.rank`"),
    ("rank true", {"rank": True}, r"got `bool` - at `\$.lora_config.rank`"),
    ("rank null", {"rank": None}, r"got `null` - at `\$.lora_config.rank`"),
    ("rank 8.0", {"rank": 8.0}, r"got `float`"),
    ("seed -1", {"rank": 8, "seed": -1}, r"lora_config.seed"),
    ("unknown", {"rank": 8, "alpha": 16}, r"unknown field `alpha` - at `\$.lora_config`"),
    ("nothing trained", {"rank": 8, "train_attn": False, "train_mlp": False, "train_unembed": False}, r"at least one of"),
    ("layout type", {"rank": 8, "train_mlp": 1}, r"Expected `bool`"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config", "text"), LORA, ids=[case[0] for case in LORA])
async def test_bad_lora_config_fails_through_the_future_VAL_15(
    client: Client, scheduler: FakeScheduler, session: str, name: str, config: dict[str, Any], text: str
) -> None:
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL, "lora_config": config}
    response = await client.post("create_model", body)
    failure = await client.failure(response)
    assert re.search(text, failure), failure
    assert response.json()["model_id"] == f"{session}:train:0"
    assert scheduler.last.command.create_model.base_model == BASE_MODEL


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"base_model": "Qwen/other"}, rf"'Qwen/other' is not served by this mesh; it serves: {BASE_MODEL}"),
        ({"base_model": 3}, r"Expected `str`"),
        ({"base_model": None}, r"base_model"),
        ({"base_model": ""}, r"not served"),
        ({"base_model": ":"}, r"not served"),
        ({"optimizer_config": {"type": "dimuon", "version": 1}}, r"optimizer 'dimuon' is not supported"),
        ({"lora_config": []}, r"lora_config"),
        ({"user_metadata": "x"}, r"user_metadata"),
    ],
)
async def test_bad_create_model_fails_through_the_future_VAL_15(
    client: Client, session: str, change: dict[str, Any], text: str
) -> None:
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL, **change}
    failure = await client.failure(await client.post("create_model", body))
    assert re.search(text, failure), failure


async def test_more_layout_than_the_pool_trains_is_refused_naming_both_values_VAL_15(
    client: Client, scheduler: FakeScheduler, session: str
) -> None:
    scheduler.pools[0].train_unembed = False
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL, "lora_config": {"rank": 8}}
    failure = await client.failure(await client.post("create_model", body))
    assert "train_unembed is true" in failure and "train_unembed = false" in failure


ADAM: list[tuple[dict[str, Any], str]] = [
    ({"adam_params": {"learning_rate": -1e-4}}, r"learning_rate must be >= 0"),
    ({"adam_params": {"beta1": 1.0}}, r"beta1 must lie in \[0, 1\)"),
    ({"adam_params": {"beta2": -0.1}}, r"beta2 must be >= 0"),
    ({"adam_params": {"eps": 0.0}}, r"eps must be > 0"),
    ({"adam_params": {"weight_decay": -1}}, r"weight_decay must be >= 0"),
    ({"adam_params": {"grad_clip_norm": -1}}, r"grad_clip_norm must be >= 0"),
    ({"adam_params": {"learning_rate": True}}, r"Expected `float`, got `bool`"),
    ({"adam_params": {"learning_rate": "1e-4"}}, r"Expected `float`, got `str`"),
    ({"adam_params": {"lr": 1e-4}}, r"unknown field `lr`"),
    ({"adam_params": 3}, r"adam_params"),
    ({"optimizer_params": {"type": "dimuon", "learning_rate": 0.1, "beta1": 0.9}}, r"optimizer 'dimuon' is not supported"),
    ({"optimizer_params": {"type": "sgd"}}, r"optimizer 'sgd' is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text"), ADAM, ids=[case[1] for case in ADAM])
async def test_bad_adam_params_fail_in_order_VAL_18(
    client: Client, scheduler: FakeScheduler, model: str, body: dict[str, Any], text: str
) -> None:
    failure = await client.failure(await client.post("optim_step", {"model_id": model, "seq_id": 1, **body}))
    assert re.search(text, failure), failure
    assert scheduler.last.command.WhichOneof("body") == "optim_step"


async def test_infinite_learning_rate_is_refused_VAL_18(client: Client, model: str) -> None:
    body = f'{{"model_id": "{model}", "seq_id": 1, "adam_params": {{"learning_rate": 1e999}}}}'.encode()
    response = await client.post("optim_step", body)
    assert "range" in await client.failure(response)


BAD_NAMES = ["", ".", "..", "a/b", "a\\b", "a\0b", ".hidden", "_x", "x" * 129, "name\n", "ü", "../../etc"]


async def test_bad_names_fail_in_order_VAL_16_SEC_06(client: Client, scheduler: FakeScheduler, model: str) -> None:
    for seq, name in enumerate(BAD_NAMES, start=1):
        for offset, route in enumerate(("save_weights", "save_weights_for_sampler")):
            body = {"model_id": model, "seq_id": 100 * offset + seq, "path": name}
            failure = await client.failure(await client.post(route, body))
            assert "is not a valid name" in failure, (name, failure)
    assert all(one.command.rejected for one in scheduler.submitted)


async def test_good_names_pass_VAL_16(client: Client, scheduler: FakeScheduler, model: str) -> None:
    for seq, name in enumerate(["a", "x" * 128, "000020", "final-1.2_b"], start=1):
        await client.post("save_weights", {"model_id": model, "seq_id": seq, "path": name})
    assert not any(one.command.rejected for one in scheduler.submitted)


SAVES: list[tuple[str, dict[str, Any], str]] = [
    ("save_weights", {"path": "x", "ttl_seconds": 0}, r"ttl_seconds"),
    ("save_weights", {"path": "x", "ttl_seconds": "3600"}, r"Expected `int"),
    ("save_weights", {"path": "x", "overwrite": "yes"}, r"Expected `bool`"),
    ("save_weights", {"path": 7}, r"Expected `str"),
    ("save_weights_for_sampler", {}, r"either path"),
    ("save_weights_for_sampler", {"path": "x", "sampling_session_seq_id": 0}, r"not both"),
    ("save_weights_for_sampler", {"path": "x", "kind": "other"}, r"kind"),
    ("save_weights_for_sampler", {"sampling_session_seq_id": True}, r"sampling_session_seq_id"),
]


@pytest.mark.parametrize(("route", "body", "text"), SAVES, ids=[case[2] for case in SAVES])
async def test_bad_saves_fail_in_order(client: Client, model: str, route: str, body: dict[str, Any], text: str) -> None:
    failure = await client.failure(await client.post(route, {"model_id": model, "seq_id": 1, **body}))
    assert re.search(text, failure), failure


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nonsense", r"is not tinker://"),
        ("tinker://a/weights/b/c", r"is not tinker://"),
        ("tinker://{model}/sampler_weights/x", r"is a sampler snapshot; load a weights/ checkpoint"),
        ("tinker://{model}/other/x", r"kind 'other'"),
        ("tinker://../weights/x", r"not one of this mesh"),
        ("tinker://{model}/weights/..", r"not a valid name"),
        (7, r"Expected `str`"),
    ],
)
async def test_bad_load_paths_fail_in_order_CKPT_12(
    client: Client, session: str, model: str, path: Any, text: str
) -> None:
    path = path.replace("{model}", model) if isinstance(path, str) else path
    body = {"path": path, "optimizer": True}
    for address in ({"model_id": model, "seq_id": 1}, {"session_id": session, "model_seq_id": 5}):
        failure = await client.failure(await client.post("load_weights", {**body, **address}))
        assert re.search(text, failure), failure


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_path": "tinker://{model}/weights/x"}, r"training checkpoint; sample from a sampler_weights/"),
        ({"model_path": "nonsense"}, r"is not tinker://"),
        ({"base_model": "Qwen/other"}, r"not served by this mesh"),
        ({}, r"needs base_model or model_path"),
    ],
)
async def test_bad_sampling_sessions_are_400(
    client: Client, session: str, model: str, change: dict[str, Any], text: str
) -> None:
    change = {key: value.replace("{model}", model) for key, value in change.items()}
    body = {"session_id": session, "sampling_session_seq_id": 0, **change}
    response = await client.post("create_sampling_session", body)
    assert response.status_code == 400
    assert re.search(text, response.json()["detail"]), response.text


async def test_metadata_too_large_to_keep_is_the_users_failure(
    client: Client, scheduler: FakeScheduler, session: str, model: str
) -> None:
    huge = {"x": "y" * 70_000}
    body = {"session_id": session, "model_seq_id": 0, "base_model": BASE_MODEL, "user_metadata": huge}
    assert "the limit is 65536" in await client.failure(await client.post("create_model", body))
    body = {"session_id": session, "model_seq_id": 1, "path": f"tinker://{model}/weights/x", "user_metadata": huge}
    assert "the limit is 65536" in await client.failure(await client.post("load_weights", body))
    body = {"model_id": model, "seq_id": 1, "path": "x", "user_metadata": huge}
    assert "the limit is 65536" in await client.failure(await client.post("save_weights", body))
    for change in ({"user_metadata": huge}, {"tags": ["x"] * 129}, {"display_name": "x" * 1025}):
        assert (await client.post("create_session", change)).status_code == 400
