"""Whatever bytes arrive: never a 5xx, never an unexpected error, always a JSON body."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.gateway import wire_forms as forms
from tests.contract.gateway.conftest import Client
from tests.contract.gateway.submitted import BASE_MODEL

EXAMPLES = int(os.environ.get("TINKERMESH_FUZZ_EXAMPLES", "60"))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture
def drive(client: Client) -> Callable[[Any, Callable[[Any], Any]], None]:
    """Runs a Hypothesis test of coroutines on the loop the application lives on."""

    def run(strategy: Any, body: Callable[[Any], Any]) -> Any:
        loop = asyncio.get_running_loop()

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(strategy)
        def examples(value: Any) -> None:
            asyncio.run_coroutine_threadsafe(body(value), loop).result(30)

        return loop.run_in_executor(None, examples)

    return run


def check(response: Any) -> None:
    assert response.status_code < 500, response.text
    assert response.status_code not in (402, 409), response.text
    assert response.status_code == 204 or response.json() is not None
    if response.status_code >= 400:
        told = response.json()
        assert told.get("detail") or told["error"]["message"]


async def test_random_bytes_as_protobuf_never_break_it_API_06(client: Client, model: str, drive: Any) -> None:
    async def send(body: bytes) -> None:
        check(await client.protobuf(body))
        check(await client.protobuf(body, content_encoding="zstd"))

    await drive(st.binary(max_size=200), send)


async def test_mutated_protobuf_never_breaks_it_API_07(client: Client, model: str, drive: Any) -> None:
    data = [forms.supervised([5, 6, 7]), forms.policy([1, 2])]
    data[0]["loss_fn_inputs"]["weights"] = forms.sparse([1.0, 2.0], [0, 2], [0, 2], [3])
    good = forms.to_protobuf(forms.request(model, 1, data, "ppo", loss_fn_config={"clip_low_threshold": 0.5}))
    body_start = good.index(model.encode()) + len(model)

    async def send(changes: list[tuple[int, int]]) -> None:
        body = bytearray(good)
        for position, value in changes:
            body[body_start + position % (len(body) - body_start)] = value
        check(await client.protobuf(bytes(body)))
        check(await client.protobuf(zstandard.compress(bytes(body)), content_encoding="zstd"))

    await drive(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4), send)


async def test_mutated_zstd_never_breaks_it_VAL_14(client: Client, model: str, drive: Any) -> None:
    good = forms.to_zstd(forms.request(model, 1, [forms.supervised(list(range(1, 200)))]))

    async def send(change: tuple[int, int]) -> None:
        body = bytearray(good)
        body[change[0] % len(body)] = change[1]
        check(await client.protobuf(bytes(body), content_encoding="zstd"))

    await drive(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), send)


ROUTES = [
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "forward_backward",
    "optim_step",
    "save_weights",
    "load_weights",
    "save_weights_for_sampler",
    "create_sampling_session",
    "asample",
    "weights_info",
    "retrieve_future",
    "retrieve_futures",
    "join_sampling_session",
    "cancel_future",
    "unload_model",
    "save_weights_external",
    "copy_weights",
    "sessions/search",
]


def good_bodies(session: str, model: str, sampler: str) -> dict[str, dict[str, Any]]:
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    path = f"tinker://{model}/weights/x"
    return {
        "create_session": {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0"},
        "session_heartbeat": {"session_id": session},
        "create_model": {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": BASE_MODEL,
            "lora_config": {"rank": 8, "seed": 1},
        },
        "get_info": {"model_id": model},
        "forward_backward": forms.request(model, 1, [forms.supervised([1, 2])]),
        "optim_step": {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1}},
        "save_weights": {"model_id": model, "seq_id": 1, "path": "x", "ttl_seconds": 5, "overwrite": False},
        "load_weights": {"model_id": model, "seq_id": 1, "path": path, "optimizer": True},
        "save_weights_for_sampler": {"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0, "kind": "snapshot"},
        "create_sampling_session": {"session_id": session, "sampling_session_seq_id": 1, "base_model": BASE_MODEL},
        "asample": {
            "sampling_session_id": sampler,
            "seq_id": 1,
            "num_samples": 1,
            "prompt": prompt,
            "sampling_params": {"max_tokens": 2, "stop": [1], "temperature": 1.0, "top_k": 1, "top_p": 0.5},
        },
        "weights_info": {"tinker_path": path},
        "retrieve_future": {"request_id": "double.0.0"},
        "retrieve_futures": {
            "target": {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0},
            "prev_cursor": 0,
            "retrieved_request_ids": ["double.0.0"],
        },
        "join_sampling_session": {"sampling_session_id": sampler},
        "cancel_future": {"request_id": "double.0.0"},
        "unload_model": {"model_id": model},
        "save_weights_external": {"model_id": model, "seq_id": 1, "path": "x", "ttl_seconds": 5},
        "copy_weights": {"source_path": path, "destination_project_id": "p", "ttl_seconds": 5},
        "sessions/search": {
            "session_id": session,
            "project_ids": ["p"],
            "user_metadata": {"k": "v"},
            "owner": {"type": "own", "owner_urns": []},
            "limit": 5,
        },
    }


def openai_bodies() -> dict[str, dict[str, Any]]:
    sampling = {
        "model": BASE_MODEL,
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 1,
        "seed": 1,
        "stop": ["x"],
        "stop_token_ids": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "max_tokens": 3,
        "logit_bias": {},
    }
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [call]},
    ]
    return {
        "completions": {**sampling, "prompt": [[1, 2], [3]], "logprobs": 1, "echo": False, "best_of": 2},
        "chat/completions": {
            **sampling,
            "messages": messages,
            "logprobs": True,
            "top_logprobs": 1,
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "auto",
            "response_format": {"type": "text"},
            "chat_template_kwargs": {"a": 1},
        },
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
async def test_mutated_bodies_never_break_openais_routes_API_06(
    client: Client, drive: Any, route: str, stream: bool
) -> None:
    """A stream that has begun never ends in an error of the gateway's own."""
    good = {**openai_bodies()[route], "stream": stream}
    if not stream:
        del good["stream_options"]
    headers = {**client.headers, "content-type": "application/json"}

    async def send(change: tuple[int, Any]) -> None:
        body = msgspec.json.decode(msgspec.json.encode(good))
        places = list(leaves(body))
        holder, key = places[change[0] % len(places)]
        holder[key] = change[1]
        try:
            content = msgspec.json.encode(body)
        except (OverflowError, msgspec.MsgspecError):
            return
        answer = await client.http.post(f"/oai/api/v1/{route}", content=content, headers=headers)
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.content.endswith(b"data: [DONE]\n\n"), answer.text
        else:
            check(answer)

    await drive(st.tuples(st.integers(0, 1000), json_values), send)


@pytest.mark.parametrize("route", ROUTES)
async def test_mutated_json_never_breaks_it_API_06(
    client: Client, session: str, model: str, sampler: str, drive: Any, route: str
) -> None:
    good = good_bodies(session, model, sampler)
    await client.post("asample", good["asample"])  # so that retrieve_futures has an answer at once
    good = good[route]

    async def send(change: tuple[int, Any]) -> None:
        body = msgspec.json.decode(msgspec.json.encode(good))
        places = list(leaves(body))
        holder, key = places[change[0] % len(places)]
        holder[key] = change[1]
        try:
            content = msgspec.json.encode(body)
        except (OverflowError, msgspec.MsgspecError):
            return
        check(await client.post(route, content))

    await drive(st.tuples(st.integers(0, 1000), json_values), send)


def leaves(value: Any) -> Any:
    """Every (container, key) of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from leaves(inner)


async def test_random_json_never_breaks_it_API_06(client: Client, drive: Any) -> None:
    async def send(value: tuple[str, Any]) -> None:
        try:
            content = msgspec.json.encode(value[1])
        except (OverflowError, msgspec.MsgspecError):
            return
        check(await client.post(value[0], content))

    await drive(st.tuples(st.sampled_from(ROUTES), json_values), send)
