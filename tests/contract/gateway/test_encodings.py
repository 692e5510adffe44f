"""JSON, protobuf and protobuf+zstd are three spellings of one command."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from services.gateway.routes import batches
from services.gateway.wire import json_body
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.doubles.eventually import eventually
from tests.doubles.peak_memory import PeakMemory

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


async def test_sparse_bomb_of_small_tensors_takes_no_memory_VAL_13(client: Client, model: str) -> None:
    tokens = [1] * 256
    targets = forms.tensor(tokens, "int64")
    bombs = {f"x{n}": forms.sparse([], [0] * 257, [], [256, 256]) for n in range(200)}
    peak = PeakMemory()
    failure = await client.failure(
        await client.protobuf(
            forms.to_protobuf(forms.request(model, 1, [forms.datum(tokens, target_tokens=targets, **bombs)]))
        )
    )
    assert "too large when dense" in failure
    assert peak.grown_mib() < 160


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


async def test_zip_bomb_is_refused_quickly_and_in_little_memory_VAL_14(client: Client) -> None:
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    block = bytes(1 << 22)
    bomb = b"".join([stream.compress(block) for _ in range(256)]) + stream.flush()
    assert len(bomb) < 200_000
    peak = PeakMemory()
    began = time.process_time()
    response = await client.protobuf(bomb, content_encoding="zstd")
    took = time.process_time() - began
    grown = peak.grown_mib()
    assert response.status_code == 413
    assert took < 1.0
    assert grown < 64, f"{grown:.0f} MiB"


@pytest.mark.parametrize("part", [b"\x1a\x00", b"\x2a\x00"], ids=["datums", "config entries"])
async def test_a_body_of_millions_of_empty_parts_takes_little_memory_VAL_14(
    client: Client, model: str, scheduler: FakeScheduler, part: bytes
) -> None:
    """Two bytes each on the wire, fifty and more once parsed."""
    body = forms.to_protobuf(forms.request(model, 1, DATA)) + part * (3 << 20)
    peak = PeakMemory()
    response = await client.protobuf(zstandard.compress(body), content_encoding="zstd")
    grown = peak.grown_mib()
    assert response.status_code == 200, response.text
    assert "data: " in scheduler.submitted[-1].command.rejected
    assert grown < 64, f"{grown:.0f} MiB"


def with_many(body: dict[str, Any], mark: str, part: str) -> bytes:
    """`body` as JSON with millions of `part` in a list in the place of `mark`."""
    text = msgspec.json.encode(body).decode()
    return text.replace(f'"{mark}"', f"[{','.join([part] * (2 << 20))}]").encode()


async def test_json_of_millions_of_empty_parts_fails_in_its_turn_and_in_little_memory_VAL_14(
    client: Client, model: str, sampler: str, scheduler: FakeScheduler
) -> None:
    datum = {"model_input": {"chunks": "MANY"}, "loss_fn_inputs": {}}
    batch = {"model_id": model, "seq_id": 1, "forward_backward_input": {"loss_fn": "ppo", "data": [datum]}}
    sample = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": "MANY"}}
    stop = {"sampling_session_id": sampler, "seq_id": 2, "prompt": {"chunks": []}, "sampling_params": {"stop": "MANY"}}
    peak = PeakMemory()
    for route, body, part in (("forward_backward", batch, "{}"), ("asample", sample, "{}"), ("asample", stop, '"a"')):
        failure = await client.failure(await client.post(route, with_many(body, "MANY", part)))
        assert "objects, lists and texts" in failure, (route, failure)
    grown = peak.grown_mib()
    assert grown < 128, f"{grown:.0f} MiB"


async def test_metadata_of_millions_of_parts_is_never_built_VAL_14(client: Client, model: str) -> None:
    save = {"model_id": model, "seq_id": 1, "path": "x", "user_metadata": {"x": "MANY"}}
    peak = PeakMemory()
    failure = await client.failure(await client.post("save_weights", with_many(save, "MANY", "[]")))
    grown = peak.grown_mib()
    assert "the limit is 65536" in failure
    assert grown < 64, f"{grown:.0f} MiB"


async def test_count_of_a_broken_sample_is_never_built_VAL_14(client: Client, sampler: str) -> None:
    body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [1]}]}, "num_samples": "MANY"}
    response = await client.post("asample", with_many(body, "MANY", "[]"))
    assert len(response.json()["sample_sequence_ids"]) == 1


async def test_routes_without_an_order_take_small_bodies_only_VAL_14(client: Client) -> None:
    response = await client.post("create_session", with_many({"tags": "MANY"}, "MANY", '"a"'))
    assert (response.status_code, response.json()["error"]) == (413, "too_large")
    assert "the limit is 1048576" in response.json()["detail"]


async def test_far_too_large_a_body_is_refused_naming_the_limit(client: Client) -> None:
    declared = str(5 * (64 << 20))
    response = await client.post("telemetry", b"{}", content_length=declared)
    assert (response.status_code, response.json()["error"]) == (413, "too_large")
    assert f"the limit is {64 << 20}" in response.json()["detail"]


async def test_oversized_body_is_413(client: Client, model: str) -> None:
    response = await client.protobuf(bytes((64 << 20) + 1))
    assert response.status_code == 413
    assert "limit" in response.json()["detail"]


@pytest.mark.parametrize("route", ["optim_step", "save_weights", "load_weights", "create_model"])
async def test_large_bodies_of_small_commands_are_decoded_off_the_loop_VAL_20(
    client: Client, model: str, session: str, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """A field this mesh does not know may be as large as any body."""
    loop, decoded_by = threading.get_ident(), list[int]()
    real = json_body._decoder

    def noted(kind: Any, ignoring: bool) -> Any:
        decoded_by.append(threading.get_ident())
        return real(kind, ignoring)

    monkeypatch.setattr(json_body, "_decoder", noted)
    key = {"session_id": session, "model_seq_id": 0} if route == "create_model" else {"model_id": model, "seq_id": 1}
    response = await client.post(route, {**key, "base_model": "double-tiny", "path": "x", "later": "x" * (1 << 20)})
    assert response.status_code == 200, response.text
    assert decoded_by and loop not in decoded_by


async def test_large_bodies_do_not_stall_heartbeats_VAL_20(
    client: Client, model: str, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding is held until a heartbeat was answered meanwhile: on the loop it would wait in vain."""
    answered, decoding = threading.Event(), threading.Event()
    real = batches.decode_batch

    def held(*args: Any) -> Any:
        decoding.set()
        assert answered.wait(10), "no heartbeat was answered while a large body was decoded"
        return real(*args)

    monkeypatch.setattr(batches, "decode_batch", held)
    body = forms.to_protobuf(forms.request(model, 1, [forms.supervised(list(range(256)))] * 1000))
    assert len(body) > 3_000_000
    posts = [asyncio.create_task(client.protobuf(body)) for _ in range(5)]
    await eventually(decoding.is_set)
    assert (await client.post("session_heartbeat", {"session_id": session})).status_code == 200
    answered.set()
    assert {response.status_code for response in await asyncio.gather(*posts)} == {200}
