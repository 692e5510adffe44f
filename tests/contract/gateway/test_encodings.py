"""JSON, protobuf and protobuf+zstd are three spellings of one command."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler

DATA = [forms.supervised([5, 6, 7], [0.1, -2.5, 1e-30]), forms.supervised([9, 8])]
REQUESTS: list[tuple[str, list[dict[str, Any]], dict[str, Any] | None]] = [
    ("cross_entropy", DATA, None),
    ("ppo", [forms.policy([1, 2, 3])], {"clip_low_threshold": 0.7, "clip_high_threshold": 1.3}),
    ("dro", [forms.policy([1, 2, 3]), forms.policy([4])], {"beta": 0.25}),
]


@pytest.mark.parametrize(("loss", "data", "config"), REQUESTS, ids=[r[0] for r in REQUESTS])
async def test_three_encodings_are_one_command_IDEM_09_API_03(
    client: Client, scheduler: FakeScheduler, model: str, loss: str, data: list[dict[str, Any]], config: Any
) -> None:
    body = forms.request(model, 1, data, loss, loss_fn_config=config)
    answers = [
        await client.post("forward_backward", body),
        await client.protobuf(forms.to_protobuf(body)),
        await client.protobuf(forms.to_protobuf(body, split=True)),
        await client.protobuf(forms.to_zstd(body), content_encoding="zstd"),
    ]
    assert len({answer.json()["request_id"] for answer in answers}) == 1
    assert len(scheduler.submitted) == 1


async def test_encodings_agree_byte_for_byte_in_payload_and_fingerprint_API_03(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    for seq, encode in enumerate((None, forms.to_protobuf, forms.to_zstd), start=1):
        body = forms.request(model, seq, DATA)
        if encode is None:
            await client.post("forward_backward", body)
        else:
            headers = {"content_encoding": "zstd"} if encode is forms.to_zstd else {}
            await client.protobuf(encode(body), **headers)
    assert len({one.payload for one in scheduler.submitted}) == 1
    assert len({one.request.fingerprint for one in scheduler.submitted}) == 1


async def test_sparse_and_dense_are_one_command(client: Client, scheduler: FakeScheduler, model: str) -> None:
    targets = forms.tensor([6, 7, 8], "int64")
    dense = forms.datum([5, 6, 7], target_tokens=targets, weights=forms.tensor([0.0, 2.0, 0.0], "float32"))
    csr = forms.datum([5, 6, 7], target_tokens=targets, weights=forms.sparse([2.0], [0, 1], [1], [3]))
    first = await client.protobuf(forms.to_protobuf(forms.request(model, 1, [dense])))
    second = await client.protobuf(forms.to_protobuf(forms.request(model, 1, [csr])))
    assert first.json() == second.json()


TOP2 = [[6, 0], [0, 9], [0, 0]]  # token 0 and weight 0 are what a sparse tensor leaves out
TOP2_WEIGHTS = [[0.5, 0.25], [0.0, 1.0], [0.0, 0.0]]


def matrices(targets: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    return forms.datum([5, 6, 7], target_tokens=targets, weights=weights)


async def test_matrix_targets_and_weights_dense_or_sparse_in_any_mix_are_one_command_API_11_VAL_12(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    targets = [
        forms.tensor([t for row in TOP2 for t in row], "int64", [3, 2]),
        forms.sparse([6, 9], [0, 1, 2, 2], [0, 1], [3, 2], "int64"),
    ]
    weights = [
        forms.tensor([w for row in TOP2_WEIGHTS for w in row], "float32", [3, 2]),
        forms.sparse([0.5, 0.25, 1.0], [0, 2, 3, 3], [0, 1, 1], [3, 2]),
    ]
    answers = []
    for body in (forms.request(model, 1, [matrices(t, w)]) for t in targets for w in weights):
        answers += [await client.post("forward_backward", body), await client.protobuf(forms.to_protobuf(body))]
    assert len({answer.json()["request_id"] for answer in answers}) == 1
    (only,) = scheduler.submitted
    assert list(only.command.batch.table.widths) == [2]
    values = np.frombuffer(only.payload, "<i4")
    assert values[3:9].reshape(3, 2).tolist() == TOP2
    assert np.frombuffer(only.payload, "<f4")[9:].reshape(3, 2).tolist() == TOP2_WEIGHTS


async def test_one_target_per_position_is_the_same_data_as_vector_or_as_matrix_API_11(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    """Only the shape of the answer differs: what came as (N, 1) goes back as (N, 1)."""
    matrix = matrices(forms.tensor([6, 7, 8], "int64", [3, 1]), forms.tensor([1.0, 2.0, 3.0], "float32", [3, 1]))
    vector = matrices(forms.tensor([6, 7, 8], "int64"), forms.tensor([1.0, 2.0, 3.0], "float32"))
    shapes = []
    for seq, data in enumerate(([matrix], [vector], [vector, matrix, vector]), start=1):
        sent = await client.protobuf(forms.to_protobuf(forms.request(model, seq, data)))
        answer = await client.result(sent.json()["request_id"])
        shapes.append([one["logprobs"]["shape"] for one in answer.json()["loss_fn_outputs"]])
    first, second, third = scheduler.submitted
    assert first.payload == second.payload
    assert third.payload == 3 * first.payload
    assert shapes == [[[3, 1]], [[3]], [[3], [3, 1], [3]]]


async def test_a_request_holds_a_bounded_number_of_targets_VAL_07(client: Client, model: str) -> None:
    wide = [1] * 256 * 256
    body = forms.datum(wide[:256], target_tokens=forms.tensor(wide, "int64", [256, 256]))
    failure = await client.failure(await client.protobuf(forms.to_protobuf(forms.request(model, 1, [body] * 62))))
    assert "4063232 target_tokens, the limit is 4000000 per request" in failure


@pytest.mark.parametrize(
    "change",
    [
        {"data": [forms.supervised([5, 6, 8]), DATA[1]]},
        {"data": list(reversed(DATA))},
        {"data": DATA[:1]},
        {"forward_only": True},
    ],
    ids=["token", "order", "count", "op"],
)
async def test_another_payload_under_a_used_key_is_refused_and_disturbs_nothing_IDEM_09(
    client: Client, scheduler: FakeScheduler, model: str, change: dict[str, Any]
) -> None:
    first = await client.post("forward_backward", forms.request(model, 1, DATA))
    change = dict(change)
    data = change.pop("data", DATA)
    second = await client.post("forward_backward", forms.request(model, 1, data, **change))
    assert second.status_code == 400
    assert "already used" in second.json()["detail"]
    assert "metrics" in (await client.result(first.json()["request_id"])).json()


async def test_one_in_text_and_one_as_number_are_not_the_same_command_PACK_02(client: Client, model: str) -> None:
    body = forms.request(model, 1, [forms.policy([1])], "dro", loss_fn_config={"beta": 1})
    first = await client.post("forward_backward", body)
    body["forward_backward_input"]["loss_fn_config"] = {"beta": 1.0}
    assert (await client.post("forward_backward", body)).json() == first.json()
    body["forward_backward_input"]["loss_fn_config"] = {"beta": "1"}
    assert (await client.post("forward_backward", body)).status_code == 400


async def test_none_and_empty_config_are_the_same_PACK_02(client: Client, model: str) -> None:
    first = await client.post("forward_backward", forms.request(model, 1, DATA))
    second = await client.post("forward_backward", forms.request(model, 1, DATA, loss_fn_config={}))
    assert first.json() == second.json()


# ---- zstd ----------------------------------------------------------------------------------


def frame_without_content_size(data: bytes) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


async def test_frame_without_content_size_is_accepted_VAL_14(client: Client, model: str) -> None:
    body = frame_without_content_size(forms.to_protobuf(forms.request(model, 1, DATA)))
    assert (await client.protobuf(body, content_encoding="zstd")).status_code == 200


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda frame: frame[:-3], "truncated"),
        (lambda frame: frame[: len(frame) // 2], "truncated|not valid zstd"),
        (lambda frame: frame + b"garbage", "bytes after its zstd frame|not valid zstd"),
        (lambda frame: frame + frame, "bytes after its zstd frame"),
        (lambda frame: b"\xff" * 40, "not valid zstd"),
        (lambda frame: b"", "truncated|not valid zstd"),
        (lambda frame: frame[:9] + bytes([frame[9] ^ 0xFF]) + frame[10:], "zstd|protobuf"),
    ],
    ids=["cut", "half", "trailing", "two frames", "not zstd", "empty", "flipped"],
)
async def test_broken_zstd_is_400_VAL_14(client: Client, model: str, damage: Any, text: str) -> None:
    frame = frame_without_content_size(forms.to_protobuf(forms.request(model, 1, DATA * 20)))
    response = await client.protobuf(damage(frame), content_encoding="zstd")
    assert response.status_code == 400
    assert any(part in response.json()["detail"] for part in text.split("|")), response.text


async def test_other_content_encoding_is_400_API_06(client: Client, model: str) -> None:
    response = await client.protobuf(b"x", content_encoding="gzip")
    assert (response.status_code, response.json()["error"]) == (400, "invalid_input")
