"""Large bodies, and small ones that would become large: refused in bounded memory, decoded beside the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest
import zstandard

from services.gateway.routes import batches
from services.gateway.wire import json_body
from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.doubles.eventually import eventually
from tests.doubles.peak_memory import PeakMemory


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
    body = forms.to_protobuf(forms.request(model, 1, [forms.supervised([9, 8])])) + part * (3 << 20)
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
    sent = with_many(body, "MANY", "[]")
    peak = PeakMemory()
    response = await client.post("asample", sent)
    grown = peak.grown_mib()
    assert len(response.json()["sample_sequence_ids"]) == 1
    assert grown < 64, f"{grown:.0f} MiB"


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
