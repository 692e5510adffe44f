"""Failures as the unmodified client sees them: its own classes, and never half a stream that looks whole."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import openai
import pytest

from services.common.errors import (
    Busy,
    ContextExceeded,
    ContractViolation,
    DecodeInterrupted,
    Interrupted,
    InvalidInput,
    ServerError,
    TinkermeshError,
    Unavailable,
)
from services.gateway.settings import Settings
from tests.contract.gateway.conftest import OTHER_KEY
from tests.contract.gateway.fake_completions import FakeCompletions, chunk
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.openai.conftest import Served, serving
from tests.contract.gateway.submitted import BASE_MODEL

CHAT: Any = [{"role": "user", "content": "x"}]


def shaped(answer: httpx.Response, status: int, code: str) -> str:
    """The message of an error in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code, error
    assert error["message"]
    return str(error["message"])


@pytest.mark.parametrize("key", ["sk-nobody", "tml-nobody"])
async def test_an_unknown_key_is_an_authentication_error(served: Served, key: str) -> None:
    client = served.client.with_options(api_key=key)
    with pytest.raises(openai.AuthenticationError) as refused:
        await client.models.list()
    assert refused.value.code == "invalid_api_key" and key not in str(refused.value)


async def test_no_key_is_an_authentication_error_and_x_api_key_is_taken_too(served: Served) -> None:
    async with httpx.AsyncClient(base_url=str(served.http.base_url), trust_env=False) as nobody:
        shaped(await nobody.post("/completions", json={"model": BASE_MODEL, "prompt": "x"}), 401, "invalid_api_key")
        assert (await nobody.get("/models", headers={"x-api-key": OTHER_KEY})).status_code == 200


@pytest.mark.parametrize("model", ["gpt-4", "gpt-4;tinker://x/sampler_weights/y", "x" * 1_000])
async def test_an_unknown_model_is_not_found(served: Served, model: str) -> None:
    for call in (
        served.client.completions.create(model=model, prompt="x"),
        served.client.chat.completions.create(model=model, messages=CHAT, stream=True),
        served.client.models.retrieve(model),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            await call
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


async def test_another_tenants_snapshot_is_forbidden_SEC_05(
    served: Served, scheduler: FakeScheduler, tenants: Any
) -> None:
    path = f"tinker://{scheduler.add_model(tenants.first, scheduler.add_session(tenants.first))}/sampler_weights/x"
    assert (await served.client.models.retrieve(path)).id == path
    for model in (path, f"{BASE_MODEL};{path}"):
        with pytest.raises(openai.PermissionDeniedError):
            await served.other.chat.completions.create(model=model, messages=CHAT)
        with pytest.raises(openai.PermissionDeniedError):
            await served.other.models.retrieve(model)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (Busy("quota samples: 2 of 2 are in flight"), openai.RateLimitError, "rate_limit_exceeded"),
        (ContextExceeded("prompt: it has 9 tokens"), openai.BadRequestError, "context_length_exceeded"),
        (InvalidInput("messages: the template says no"), openai.BadRequestError, "invalid_value"),
        (ServerError("stage 'prefill': no"), openai.InternalServerError, "server"),
        (ContractViolation("no"), openai.InternalServerError, "contract_violation"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_before_the_first_byte_has_its_own_status_PDR_09(
    served: Served, completions: FakeCompletions, error: TinkermeshError, kind: Any, code: str, stream: bool
) -> None:
    """A deterministic refusal is asked for once, and comes with its own status and text."""
    completions.refusal = error
    with pytest.raises(kind) as refused:
        await served.chat(stream=stream)
    assert refused.value.code == code and error.message in refused.value.message
    assert len(completions.asked) == 1, "no retry of what would fail again"
    completions.refusal, completions.play = None, [error]
    with pytest.raises(kind):
        await served.chat(stream=stream)


async def test_a_scheduler_that_is_away_is_a_503_that_clients_repeat(
    settings: Settings, scheduler: FakeScheduler
) -> None:
    async with serving(msgspec.structs.replace(settings, retry_seconds=0.5)) as served:
        scheduler.completions.refusal = Unavailable("stage 'place': no live sampler in pool double")
        answer = await served.http.post("/completions", json={"model": BASE_MODEL, "prompt": "x"})
        assert "stage 'place'" in shaped(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert len(scheduler.completions.asked) > 1, "another replica may have been there"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DecodeInterrupted("the stream broke off: decode sampler d was lost"), "pd_decode_interrupted"),
        (Interrupted("the stream broke off: sampler s was lost"), "stream_interrupted"),
        (Unavailable("the scheduler is away"), "stream_interrupted"),
    ],
)
async def test_a_stream_that_dies_says_so_and_has_no_done_PDR_10(
    served: Served, completions: FakeCompletions, error: TinkermeshError, code: str
) -> None:
    completions.play = [chunk("a"), chunk("b"), error]
    events, done = await served.events("/chat/completions", messages=CHAT)
    assert not done and len(completions.asked) == 1
    assert [one["choices"][0]["delta"].get("content") for one in events[:-1]] == ["a", "b"]
    assert events[-1]["error"]["code"] == code and events[-1]["error"]["message"]
    with pytest.raises(openai.APIError) as broken:
        async for _ in await served.chat(stream=True):
            pass
    assert broken.value.code == code


async def test_a_whole_answer_that_dies_is_a_503_that_clients_repeat_PDR_10(
    served: Served, completions: FakeCompletions
) -> None:
    completions.play = [chunk("a"), DecodeInterrupted("decode sampler d was lost")]
    with pytest.raises(openai.InternalServerError) as broken:
        await served.chat()
    assert broken.value.status_code == 503 and broken.value.code == "pd_decode_interrupted"


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/completions", "unknown_url"),
        ("POST", "/embeddings", "unknown_url"),
        ("POST", "/models", "unknown_url"),
    ],
)
async def test_routes_that_are_not_there_say_so_in_the_same_shape(
    served: Served, method: str, path: str, code: str
) -> None:
    shaped(await served.http.request(method, path), 404, code)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 5}', b"\xff\xfe"])
async def test_bodies_that_are_none_are_bad_requests(served: Served, body: bytes) -> None:
    for route in ("/completions", "/chat/completions"):
        shaped(await served.http.post(route, content=body), 400, "invalid_value")


@pytest.mark.parametrize("prompt", [b'"\xff"', b'["x", "\xff"]'])
async def test_a_prompt_that_is_no_utf_8_is_a_bad_request_API_06(served: Served, prompt: bytes) -> None:
    body = b'{"model": "tinkermesh/double", "prompt": ' + prompt + b"}"
    assert "UTF-8" in shaped(await served.http.post("/completions", content=body), 400, "invalid_value")


async def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    answer = await served.http.post("/completions", json={"model": BASE_MODEL, "prompt": "x" * (1 << 20)})
    assert shaped(answer, 413, "request_too_large")


async def test_completions_under_way_are_bounded_SEC_10(settings: Settings, scheduler: FakeScheduler) -> None:
    held = asyncio.Event()
    scheduler.completions.play = [chunk("a"), held, chunk("b", finish="stop")]
    async with serving(msgspec.structs.replace(settings, max_completions_per_tenant=1, max_completions=2)) as served:
        first: Any = await served.chat(stream=True)
        await anext(first)
        with pytest.raises(openai.RateLimitError) as refused:
            await served.chat()
        assert "1 completions are open already" in refused.value.message
        theirs: Any = await served.other.chat.completions.create(model=BASE_MODEL, messages=CHAT, stream=True)
        held.set()
        assert [one.choices[0].delta.content async for one in first] == ["b"]
        assert len([one async for one in theirs]) == 2
        assert (await served.chat()).choices[0].message.content == "ab", "the place was given back"
