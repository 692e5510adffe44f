"""Sampling requests that cannot be honoured: accepted, then failed by their futures; every form of stop."""

# ruff: noqa: E501 - one case per line

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import VOCAB


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
