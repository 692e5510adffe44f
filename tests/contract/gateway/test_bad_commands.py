"""Broken content of every other ordered command, of create_model and of asample."""

# ruff: noqa: E501 - one case per line

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL, VOCAB

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


def params(**values: Any) -> dict[str, Any]:
    return {"sampling_params": {"max_tokens": 4, **values}}


def targets(data: list[float], **changes: Any) -> dict[str, Any]:
    tensor = {"data": data, "dtype": "int64", "shape": [2, 1], **changes}
    return {"target_prompt_logprobs": {key: value for key, value in tensor.items() if value is not None}}


SAMPLES: list[tuple[str, dict[str, Any], str]] = [
    ("num_samples 0", {"num_samples": 0}, r"num_samples must lie in \[1, 64\], not 0"),
    ("num_samples 65", {"num_samples": 65}, r"num_samples"),
    ("num_samples true", {"num_samples": True}, r"Expected `int`, got `bool` - at `\$.num_samples`"),
    ("num_samples text", {"num_samples": "4"}, r"Expected `int`, got `str`"),
    ("max_tokens 0", params(max_tokens=0), r"max_tokens must be >= 1"),
    ("over context", params(max_tokens=254), r"prompt of 3 tokens \+ max_tokens 254 exceeds the context of 256"),
    ("temperature", params(temperature=-0.1), r"temperature must be >= 0"),
    ("temperature bool", params(temperature=True), r"Expected `float`"),
    ("top_p 0", params(top_p=0.0), r"top_p must be > 0"),
    ("top_p 1.1", params(top_p=1.1), r"top_p must lie in \(0, 1\]"),
    ("top_k 0", params(top_k=0), r"top_k must be -1"),
    ("top_k -2", params(top_k=-2), r"top_k must be -1"),
    ("top_k above int32", params(top_k=1 << 40), r"top_k must be -1 \(off\) or lie in \[1, 2147483647\]"),
    ("mixed stop", params(stop=["a", 3]), r"stop mixes texts and token ids"),
    ("stop range", params(stop=[VOCAB]), r"each stop token must lie in \[0, 512\)"),
    ("stop negative", params(stop=[-1]), r"each stop token"),
    ("stop true", params(stop=[True]), r"stop"),
    ("stop empty text", params(stop=[""]), r"each stop text"),
    ("stop number", params(stop=3), r"stop"),
    ("unknown param", params(min_p=0.1), r"unknown field `min_p` - at `\$.sampling_params`"),
    ("topk negative", {"topk_prompt_logprobs": -1}, r"topk_prompt_logprobs must lie in \[0, 20\]"),
    ("topk cap", {"topk_prompt_logprobs": 21}, r"topk_prompt_logprobs"),
    ("topk sample cap", {"topk_sample_logprobs": 21}, r"topk_sample_logprobs"),
    ("last_n", {"prompt_logprobs_last_n": -1}, r"prompt_logprobs_last_n"),
    ("last_n alone", {"prompt_logprobs_last_n": 1}, r"prompt_logprobs_last_n needs prompt_logprobs"),
    ("last_n all", {"prompt_logprobs": True, "prompt_logprobs_last_n": 3}, r"prompt_logprobs_last_n must lie in \[1, 2\]"),
    ("targets no dtype", {"target_prompt_logprobs": {"data": []}}, r"missing required field `dtype` - at `\$.target_prompt"),
    ("targets float", targets([1.0, 2.0], dtype="float32"), r"target_prompt_logprobs: dtype must be int64"),
    ("targets halves", targets([1.0, 2.0]), r"whole numbers only"),
    ("targets 1-D", targets([1, 2], shape=[2]), r"shape must be \[len\(prompt\) - 1, K\] with K >= 1, not \[2\]"),
    ("targets no shape", targets([1, 2], shape=None), r"shape must be"),
    ("targets no column", targets([], shape=[2, 0]), r"K >= 1"),
    ("targets rows", targets([1, 2, 3], shape=[3, 1]), r"must have len\(prompt\) - 1 = 2 rows"),
    ("targets short", targets([1, 2, 3], shape=[2, 2]), r"shape \[2, 2\] needs 4 values, 3 were sent"),
    ("targets range", targets([1, VOCAB]), r"value 1: id 512 is neither -1 \(skip\) nor in \[0, 512\)"),
    ("targets below", targets([-2, 1]), r"value 0: id -2"),
    ("targets nothing", targets([-1, -1]), r"names no id at all"),
    ("targets many", targets([1] * (1 << 17) + [1, 1], shape=[2, (1 << 16) + 1]), r"131074 ids, the limit is 131072"),
    ("targets half sparse", targets([1], sparse_crow_indices=[0, 0, 1]), r"needs sparse_crow_indices and"),
    ("targets crow", targets([1], sparse_crow_indices=[0, 1], sparse_col_indices=[0]), r"crow_indices has 2 entries"),
    ("targets column", targets([1], sparse_crow_indices=[0, 0, 1], sparse_col_indices=[1]), r"col_indices must lie in \[0, 1\)"),
    ("targets wide", targets([1], shape=[2, 2**40], sparse_crow_indices=[0, 0, 1], sparse_col_indices=[0]), r"shape must be"),
    ("alt tokens", {"prompt_alt_tokens_k": -1}, r"prompt_alt_tokens_k must lie in \[0, 64\]"),
    ("alt tokens cap", {"prompt_alt_tokens_k": 65}, r"prompt_alt_tokens_k"),
    ("prompt token", {"prompt": {"chunks": [{"tokens": [1, VOCAB]}]}}, r"prompt, position 1: token 512"),
    ("prompt negative", {"prompt": {"chunks": [{"tokens": [-1]}]}}, r"prompt, position 0: token -1"),
    ("prompt empty", {"prompt": {"chunks": []}}, r"prompt is empty"),
    ("prompt too long", {"prompt": {"chunks": [{"tokens": [1] * 256}]}}, r"leaves no room"),
    ("prompt beyond int32", {"prompt": {"chunks": [{"tokens": [1, 2**40]}]}}, r"prompt: position 1: token 1099511627776 is outside"),
    ("prompt image", {"prompt": {"chunks": [{"type": "image", "data": ""}]}}, r"prompt: image chunk"),
    ("prompt asset", {"prompt": {"chunks": [{"type": "image_asset_pointer", "location": "x"}]}}, r"image_asset_pointer chunk"),
    ("prompt float", {"prompt": {"chunks": [{"tokens": [1.0]}]}}, r"Expected `int`, got `float`"),
    ("prompt text", {"prompt": "hello"}, r"prompt"),
    ("VAL-19 model_path", {"model_path": "tinker://x/sampler_weights/y"}, r"is not what this sampling session was made from"),
    ("VAL-19 base_model", {"base_model": "Qwen/other"}, r"is not this session's"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "text"), SAMPLES, ids=[case[0] for case in SAMPLES])
async def test_bad_samples_fail_through_the_future_VAL_17_VAL_19(
    client: Client, scheduler: FakeScheduler, sampler: str, name: str, change: dict[str, Any], text: str
) -> None:
    body = {
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 4},
        "sampling_session_id": sampler,
        "seq_id": 0,
        **change,
    }
    response = await client.post("asample", body)
    failure = await client.failure(response)
    assert re.search(text, failure), failure
    asked = change.get("num_samples", 2)
    expected = max(1, min(asked, 64)) if isinstance(asked, int) and not isinstance(asked, bool) else 1
    assert len(response.json()["sample_sequence_ids"]) == expected


STOPS: list[tuple[Any, list[str], list[int], bool]] = [
    (None, [], [], False),
    ([], [], [], True),
    ("\n\nUser:", ["\n\nUser:"], [], False),
    (["a", "b"], ["a", "b"], [], False),
    ([5, 6], [], [5, 6], False),
]


@pytest.mark.parametrize(("stop", "strings", "tokens", "disabled"), STOPS, ids=[repr(case[0]) for case in STOPS])
async def test_every_form_of_stop_VAL_17(
    client: Client,
    scheduler: FakeScheduler,
    sampler: str,
    stop: Any,
    strings: list[str],
    tokens: list[int],
    disabled: bool,
) -> None:
    body = {"prompt": {"chunks": [{"tokens": [1]}]}, "sampling_session_id": sampler, "seq_id": 0}
    body["sampling_params"] = {"max_tokens": 2, **({} if stop is None else {"stop": stop})}
    await client.post("asample", body)
    sent = scheduler.last.command.sample.stop
    assert (list(sent.strings), list(sent.token_ids), sent.disabled) == (strings, tokens, disabled)


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
