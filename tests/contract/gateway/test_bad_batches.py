"""Broken forward_backward content fails in its turn, with a text that names what to change."""

# ruff: noqa: E501 - one case per line

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tinkermesh.wire.v1 import wire_pb2 as wire

from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import VOCAB

T3 = [5, 6, 7]
ONES = forms.tensor([1.0, 1.0, 1.0], "float32")
TARGETS = forms.tensor([6, 7, 8], "int64")
GOOD = forms.supervised(T3)


def ce(**inputs: Any) -> dict[str, Any]:
    return forms.datum(T3, **{"target_tokens": TARGETS, "weights": ONES, **inputs})


def weights(*values: float) -> dict[str, Any]:
    return ce(weights=forms.tensor(list(values), "float32"))


def csr(crow: list[int], col: list[int], shape: list[int], count: int | None = None) -> dict[str, Any]:
    return ce(weights=forms.sparse([1.0] * (len(col) if count is None else count), crow, col, shape))


def matrix_policy(width: int) -> dict[str, Any]:
    shape = [3, width]
    scores = forms.tensor([-0.5] * 3 * width, "float32", shape)
    return forms.datum(
        T3, target_tokens=forms.tensor([1] * 3 * width, "int64", shape), logprobs=scores, advantages=scores
    )


IMAGE = {"model_input": {"chunks": [{"type": "image", "data": "aGk=", "format": "png"}]}, "loss_fn_inputs": {}}
POLICY = forms.policy(T3)

CASES: list[tuple[str, str, list[dict[str, Any]], dict[str, Any], str]] = [
    # id, loss, data, more, expected text
    ("VAL-02 missing targets", "cross_entropy", [forms.datum(T3, weights=ONES)], {}, r"datum 0: needs target_tokens"),
    ("VAL-02 missing advantages", "ppo", [ce()], {}, r"datum 0: needs .*missing: logprobs, advantages"),
    ("VAL-03 unknown name", "cross_entropy", [GOOD, ce(foo=ONES)], {}, r"datum 1: unknown loss input 'foo'"),
    ("VAL-03 mask", "importance_sampling", [{**POLICY, "loss_fn_inputs": {**POLICY["loss_fn_inputs"], "mask": ONES}}], {}, r"unknown loss input 'mask'"),
    ("thresholds", "ppo", [{**POLICY, "loss_fn_inputs": {**POLICY["loss_fn_inputs"], "clip_low_threshold": ONES}}], {}, r"per-token clip_low_threshold"),
    ("VAL-04 target length", "cross_entropy", [forms.datum([5, 6], target_tokens=TARGETS, weights=ONES)], {}, r"datum 0: 3 target_tokens for 2 model_input"),
    ("VAL-04 vector length", "cross_entropy", [GOOD, weights(1.0, 1.0)], {}, r"datum 1: weights has shape \[2\], target_tokens has \[3\]"),
    ("VAL-05 no data", "cross_entropy", [], {}, r"data is empty"),
    ("VAL-05 empty input", "cross_entropy", [forms.supervised([])], {}, r"datum 0: model_input is empty"),
    ("VAL-06 negative token", "cross_entropy", [GOOD, forms.supervised([5, -1])], {}, r"datum 1, position 1: model_input token -1"),
    ("VAL-06 token = vocab", "cross_entropy", [forms.supervised([VOCAB, 1])], {}, r"datum 0, position 0: model_input token 512 is outside \[0, 512\)"),
    ("VAL-06 target = vocab", "cross_entropy", [ce(target_tokens=forms.tensor([1, VOCAB, 2], "int64"))], {}, r"datum 0, position 1: target token 512"),
    ("VAL-06 huge target", "cross_entropy", [ce(target_tokens=forms.tensor([1, 2**32 + 1, 2], "int64"))], {}, r"position 1: target token 4294967297"),
    ("VAL-06 float targets", "cross_entropy", [ce(target_tokens=forms.tensor([1.0, 2.0, 3.0], "float32"))], {}, r"target_tokens must be int64"),
    ("VAL-07 datum tokens", "cross_entropy", [forms.supervised([1] * 257)], {}, r"datum 0: 257 tokens, the limit is 256"),
    ("VAL-07 datums", "cross_entropy", [forms.supervised([1])] * 1025, {}, r"1025 datums, the limit is 1024"),
    ("VAL-08 nan", "cross_entropy", [GOOD, weights(1.0, float("nan"), 1.0)], {}, r"datum 1, position 1: weights is nan"),
    ("VAL-08 inf", "ppo", [forms.policy(T3), {**POLICY, "loss_fn_inputs": {**POLICY["loss_fn_inputs"], "advantages": forms.tensor([0.0, 1.0, float("inf")], "float32")}}], {}, r"datum 1, position 2: advantages is inf"),
    ("VAL-09 loss", "focal", [GOOD], {}, r"loss_fn 'focal' is not supported by this mesh; use one of cispo, cross_entropy"),
    ("VAL-09 custom", "custom", [GOOD], {"loss_fn_config": {"loss_id": "x"}}, r"loss_fn 'custom' is not supported"),
    ("VAL-09 empty loss", "", [GOOD], {}, r"loss_fn '' is not supported"),
    ("VAL-09 low above high", "ppo", [POLICY], {"loss_fn_config": {"clip_low_threshold": 1.3, "clip_high_threshold": 1.1}}, r"clip_low_threshold 1.3 is above"),
    ("VAL-09 low above default", "ppo", [POLICY], {"loss_fn_config": {"clip_low_threshold": 1.5}}, r"clip_low_threshold 1.5 is above clip_high_threshold 1.2"),
    ("VAL-09 beta", "dro", [POLICY], {"loss_fn_config": {"beta": -0.1}}, r"beta must be >= 0"),
    ("VAL-09 text", "dro", [POLICY], {"loss_fn_config": {"beta": "0.1"}}, r"beta of dro must be a number"),
    ("VAL-10 typo", "ppo", [POLICY], {"loss_fn_config": {"clip_low": 0.8}}, r"'clip_low' is not read by ppo; accepted keys: clip_low_threshold, clip_high_threshold"),
    ("VAL-10 ce takes none", "cross_entropy", [GOOD], {"loss_fn_config": {"beta": 0.8}}, r"accepted keys: none"),
    ("VAL-12 shape", "cross_entropy", [ce(weights=forms.tensor([1.0, 1.0, 1.0], "float32", [4]))], {}, r"datum 0: weights: shape \[4\] needs 4 values"),
    ("VAL-12 3-D", "cross_entropy", [ce(weights=forms.tensor([1.0, 1.0, 1.0], "float32", [1, 3, 1]))], {}, r"only \(N,\) and \(N, K\)"),
    ("VAL-12 negative size", "cross_entropy", [ce(weights=forms.tensor([1.0, 1.0, 1.0], "float32", [-3, -1]))], {}, r"negative size"),
    ("2-D", "cross_entropy", [ce(target_tokens=forms.tensor([1, 2, 3, 4, 5, 6], "int64", [3, 2]), weights=forms.tensor([1.0] * 3, "float32"))], {}, r"weights has shape \[3\], target_tokens has \[3, 2\]"),
    ("2-D ppo", "ppo", [matrix_policy(2)], {}, r"target_tokens has shape \[3, 2\]; ppo takes one target per position, send shape \[3\]"),
    ("2-D ppo (N,1)", "ppo", [matrix_policy(1)], {}, r"target_tokens has shape \[3, 1\]; ppo takes one target per position"),
    ("2-D K = 0", "cross_entropy", [ce(target_tokens=forms.tensor([], "int64", [3, 0]), weights=forms.tensor([], "float32", [3, 0]))], {}, r"between 1 and 256 targets per position"),
    ("2-D K = 257", "cross_entropy", [ce(target_tokens=forms.tensor([1] * 771, "int64", [3, 257]), weights=forms.tensor([1.0] * 771, "float32", [3, 257]))], {}, r"between 1 and 256 targets per position"),
    ("2-D rows", "cross_entropy", [ce(target_tokens=forms.tensor([1] * 8, "int64", [4, 2]), weights=forms.tensor([1.0] * 8, "float32", [4, 2]))], {}, r"4 target_tokens for 3 model_input"),
    ("2-D target = vocab", "cross_entropy", [ce(target_tokens=forms.tensor([1, 2, 3, 4, 5, VOCAB], "int64", [3, 2]), weights=forms.tensor([1.0] * 6, "float32", [3, 2]))], {}, r"datum 0, position 5: target token 512"),
    ("2-D CSR column", "cross_entropy", [csr([0, 1, 1, 1], [2], [3, 2])], {}, r"col_indices must lie in \[0, 2\)"),
    ("2-D CSR crow falls", "cross_entropy", [csr([0, 2, 1, 2], [0, 1], [3, 2])], {}, r"crow_indices must never decrease"),
    ("2-D CSR duplicate", "cross_entropy", [csr([0, 2, 2, 2], [1, 1], [3, 2])], {}, r"strictly increase"),
    ("2-D CSR rows", "cross_entropy", [csr([0, 1], [0], [3, 2])], {}, r"2 entries, 3 rows need 4"),
    ("VAL-13 column -1", "cross_entropy", [csr([0, 1], [-1], [3])], {}, r"col_indices must lie in \[0, 3\)"),
    ("VAL-13 column = len", "cross_entropy", [csr([0, 1], [3], [3])], {}, r"col_indices must lie in \[0, 3\)"),
    ("VAL-13 duplicate", "cross_entropy", [csr([0, 2], [2, 2], [3])], {}, r"strictly increase"),
    ("VAL-13 decreasing columns", "cross_entropy", [csr([0, 2], [2, 1], [3])], {}, r"strictly increase"),
    ("VAL-13 crow end", "cross_entropy", [csr([0, 3], [0, 1], [3])], {}, r"end at the number of values"),
    ("VAL-13 crow start", "cross_entropy", [csr([1, 2], [0, 1], [3])], {}, r"start at 0"),
    ("VAL-13 crow size", "cross_entropy", [csr([0, 1, 2], [0, 1], [3])], {}, r"1 rows need 2"),
    ("VAL-13 columns per value", "cross_entropy", [csr([0, 2], [0], [3], count=2)], {}, r"1 entries for 2 values"),
    ("VAL-13 huge", "cross_entropy", [csr([0, 1], [0], [10**12])], {}, r"does not start with the 3 model_input tokens"),
    ("VAL-13 huge 2-D", "cross_entropy", [csr([0] * 4, [], [3, 10**12])], {}, r"at most 256 targets per position"),
    ("VAL-13 wrapping crow", "cross_entropy", [csr([0, 2**63 - 1], [0], [3])], {}, r"end at the number of values"),
]  # fmt: skip
# JSON cannot carry these, or refuses them earlier and by another text.
PROTO_ONLY = {"VAL-08 nan", "VAL-08 inf"}


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize(("name", "loss", "data", "more", "text"), CASES, ids=[case[0] for case in CASES])
async def test_broken_content_is_an_ordered_failure_VAL_01(
    client: Client,
    scheduler: FakeScheduler,
    model: str,
    encoding: str,
    name: str,
    loss: str,
    data: list[dict[str, Any]],
    more: dict[str, Any],
    text: str,
) -> None:
    body = forms.request(model, 1, data, loss, **more)
    if encoding == "protobuf":
        response = await client.protobuf(forms.to_protobuf(body))
    elif name in PROTO_ONLY:
        pytest.skip("not a JSON value")
    else:
        response = await client.post("forward_backward", body)
    failure = await client.failure(response)
    assert re.search(text, failure), failure
    assert scheduler.last.payload == b""
    good = await client.protobuf(forms.to_protobuf(forms.request(model, 2, [GOOD])))
    assert "error" not in (await client.result(good.json()["request_id"])).json()


async def test_broken_content_fails_alone_and_the_next_command_runs_API_07(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    await client.failure(await client.protobuf(forms.to_protobuf(forms.request(model, 1, []))))
    ok = await client.protobuf(forms.to_protobuf(forms.request(model, 2, [GOOD])))
    assert (await client.result(ok.json()["request_id"])).json()["metrics"]["loss:sum"] == 3.0
    assert [one.request.model.seq_id for one in scheduler.submitted] == [1, 2]


JSON_ONLY: list[tuple[str, dict[str, Any], str]] = [
    ("VAL-06 3.0", {"tokens": [1, 3.0]}, r"Expected `int`, got `float`"),
    ("VAL-06 true", {"tokens": [1, True]}, r"Expected `int`, got `bool`"),
    ("VAL-06 text", {"tokens": [1, "2"]}, r"Expected `int`, got `str`"),
    ("too large", {"tokens": [1, 2**40]}, r"position 1: token 1099511627776 is outside"),
    ("image", {"chunk_type": "image"}, r"datum 0: image chunk"),
    ("VAL-08 1e39", {"weights": [1e39, 1.0]}, r"datum 0, position 0: weights is inf"),
    ("VAL-12 dtype", {"dtype": "bfloat16"}, r"dtype 'bfloat16' is not accepted"),
    ("VAL-06 float target", {"targets": [1.5, 2.0]}, r"whole numbers only"),
    ("VAL-09 bool config", {"config": {"beta": True}}, r"loss_fn_config"),
    ("no data", {"drop": "data"}, r"missing required field `data`"),
]


@pytest.mark.parametrize(("name", "change", "text"), JSON_ONLY, ids=[case[0] for case in JSON_ONLY])
async def test_json_values_are_strict_VAL_06(
    client: Client, model: str, name: str, change: dict[str, Any], text: str
) -> None:
    one = forms.datum(
        change.get("tokens", [1, 2]),
        target_tokens=forms.tensor(change.get("targets", [1, 2]), "int64"),
        weights=forms.tensor(change.get("weights", [1.0, 1.0]), change.get("dtype", "float32")),
    )
    one["model_input"]["chunks"][0]["type"] = change.get("chunk_type", "encoded_text")
    body = forms.request(model, 1, [one], loss_fn_config=change.get("config"))
    body["forward_backward_input"].pop(change.get("drop", ""), None)
    failure = await client.failure(await client.post("forward_backward", body))
    assert re.search(text, failure), failure


def raw(model: str, datum: wire.Datum, **more: Any) -> bytes:
    return wire.ForwardBackwardRequest(
        model_id=model, seq_id=1, loss_fn="cross_entropy", data=[datum], **more
    ).SerializeToString()


def proto_datum(**changes: Any) -> wire.Datum:
    targets = wire.Tensor(dense=np.array([1, 2], "<i8").tobytes(), dtype=wire.DTYPE_INT64, shape=[2])
    weights = wire.Tensor(dense=np.ones(2, "<f4").tobytes(), dtype=wire.DTYPE_FLOAT32, shape=[2])
    chunk = wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=np.array([1, 2], "<i4").tobytes()))
    inputs = {"target_tokens": targets, "weights": weights, **changes.pop("inputs", {})}
    return wire.Datum(model_input=changes.pop("chunks", [chunk]), loss_fn_inputs=inputs)


PROTO_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("VAL-12 ten bytes", {"inputs": {"weights": wire.Tensor(dense=b"0123456789", dtype=wire.DTYPE_FLOAT32)}}, r"10 bytes are not a whole number of float32"),
    ("VAL-12 bfloat16", {"inputs": {"weights": wire.Tensor(dense=b"0123", dtype=wire.DTYPE_BFLOAT16)}}, r"dtype 'number 4' is not accepted"),
    ("VAL-12 no dtype", {"inputs": {"weights": wire.Tensor(dense=b"01234567")}}, r"dtype"),
    ("VAL-13 ragged indices", {"inputs": {"weights": wire.Tensor(sparse_csr=wire.SparseCsr(values=b"0123", crow_indices=b"123", col_indices=b""), dtype=wire.DTYPE_FLOAT32, shape=[2])}}, r"whole number of its items"),
    ("VAL-13 no shape", {"inputs": {"weights": wire.Tensor(sparse_csr=wire.SparseCsr(values=b"0123"), dtype=wire.DTYPE_FLOAT32)}}, r"only \(N,\)"),
    ("ragged tokens", {"chunks": [wire.Chunk(encoded_text=wire.EncodedTextChunk(tokens=b"12345"))]}, r"5 bytes, not a whole number of int32"),
    ("image", {"chunks": [wire.Chunk(image=wire.ImageChunk(data=b"x", format="png"))]}, r"datum 0: image chunk"),
    ("dmel", {"chunks": [wire.Chunk(dmel=wire.DmelChunk(dmel=b"x"))]}, r"datum 0: dmel chunk"),
    ("empty chunk", {"chunks": [wire.Chunk()]}, r"datum 0: empty chunk"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "text"), PROTO_CASES, ids=[case[0] for case in PROTO_CASES])
async def test_broken_protobuf_tensor_is_an_ordered_failure_API_07_VAL_12(
    client: Client, model: str, name: str, changes: dict[str, Any], text: str
) -> None:
    failure = await client.failure(await client.protobuf(raw(model, proto_datum(**dict(changes)))))
    assert re.search(text, failure), failure


async def test_v2_config_replaces_the_legacy_map_VAL_11(client: Client, scheduler: FakeScheduler, model: str) -> None:
    datum = forms._datum(forms.policy(T3), False)
    request = wire.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="dro", data=[datum])
    request.loss_fn_config["beta"] = 0.3
    request.loss_fn_config_v2["beta"].number = 0.0
    await client.protobuf(request.SerializeToString())
    assert dict(scheduler.last.command.batch.loss.numbers) == {"beta": 0.0}
    request.seq_id = 2
    request.loss_fn_config_v2["beta"].Clear()
    failure = await client.failure(await client.protobuf(request.SerializeToString()))
    assert "neither a number nor a text" in failure


async def test_inputs_the_loss_does_not_read_are_dropped_counted_and_warned_once_VAL_03(
    client: Client, scheduler: FakeScheduler, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = [forms.policy(T3), forms.policy(T3)]
    mixed[1]["loss_fn_inputs"]["weights"] = ONES
    clean = [forms.policy(T3), forms.policy(T3)]
    await client.post("forward_backward", forms.request(model, 1, mixed, "ppo"))
    await client.post("forward_backward", forms.request(model, 2, mixed, "ppo"))
    await client.post("forward_backward", forms.request(model, 3, clean, "ppo"))
    first, second, third = scheduler.submitted
    assert first.payload == second.payload == third.payload
    assert first.command == third.command
    assert client.gateway.dropped.total == {"weights": 2}
    warned = [r for r in caplog.records if "does not read" in r.getMessage()]
    assert len(warned) == 1 and "weights" in warned[0].getMessage() and "ppo" in warned[0].getMessage()


async def test_cross_entropy_without_weights_means_ones(client: Client, scheduler: FakeScheduler, model: str) -> None:
    with_ones = forms.request(model, 1, [ce()])
    await client.post("forward_backward", with_ones)
    await client.post("forward_backward", forms.request(model, 2, [forms.datum(T3, target_tokens=TARGETS)]))
    first, second = scheduler.submitted
    assert first.payload == second.payload
