"""Streams as bytes: heartbeats, clients that go, and what is counted of them."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import httpx
import msgspec
import openai
import pytest

from services.common.errors import Unavailable
from services.gateway.metrics import GATEWAY
from services.gateway.settings import Settings
from tests.contract.gateway.fake_completions import SAID, FakeCompletions, chunk
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.openai.conftest import Served, serving
from tests.contract.gateway.submitted import BASE_MODEL
from tests.doubles.eventually import eventually

ABORTS = 1_000
AT_ONCE = 20
BODY: dict[str, Any] = {"model": BASE_MODEL, "messages": [{"role": "user", "content": "x"}]}


def counted(name: str, **labels: str) -> float:
    return GATEWAY.registry.get_sample_value(f"tinkermesh_gateway_{name}", labels) or 0.0


async def test_characters_of_several_bytes_are_never_split_PDR_13(served: Served) -> None:
    """Every event by itself is whole JSON in UTF-8, whatever chunks the network makes of it."""
    body = {"model": BASE_MODEL, "prompt": "x", "max_tokens": 99, "stream": True}
    async with served.http.stream("POST", "/completions", json=body) as answer:
        raw = await answer.aread()
    events = [msgspec.json.decode(block[6:].decode()) for block in raw.split(b"\n\n")[:-2]]
    assert "".join(one["choices"][0]["text"] for one in events) == SAID


@pytest.mark.parametrize("text", ["a\r\nb", "data: x\n\ndata: [DONE]\n\n", "\u2028\x00\\u0041"])
async def test_line_ends_in_a_text_do_not_end_an_event_PDR_13(
    served: Served, completions: FakeCompletions, text: str
) -> None:
    completions.play = [chunk(text, finish="stop")]
    stream: Any = await served.chat(stream=True)
    assert [one.choices[0].delta.content async for one in stream] == [text]


async def test_a_first_token_that_takes_long_is_waited_for_with_comments(
    settings: Settings, scheduler: FakeScheduler
) -> None:
    held = asyncio.Event()
    scheduler.completions.play = [held, chunk("late", finish="stop")]
    async with serving(msgspec.structs.replace(settings, completion_heartbeat_seconds=0.05)) as served:
        async with served.http.stream("POST", "/chat/completions", json={**BODY, "stream": True}) as answer:
            parts = answer.aiter_bytes()
            assert [await anext(parts) for _ in range(2)] == [b": alive\n\n"] * 2
            held.set()
            rest = b"".join([part async for part in parts])
        assert b'"content":"late"' in rest and rest.endswith(b"data: [DONE]\n\n")
        held.clear()
        stream: Any = await served.chat(stream=True)  # the client takes comments for what they are
        held.set()
        assert [one.choices[0].delta.content async for one in stream] == ["late"]


async def test_what_fails_after_a_heartbeat_is_told_in_the_stream_PDR_10(
    settings: Settings, scheduler: FakeScheduler
) -> None:
    held = asyncio.Event()
    scheduler.completions.play = [held, Unavailable("stage 'place': no live sampler")]
    async with serving(msgspec.structs.replace(settings, completion_heartbeat_seconds=0.05)) as served:
        async with served.http.stream("POST", "/chat/completions", json={**BODY, "stream": True}) as answer:
            parts = answer.aiter_bytes()
            await anext(parts)
            held.set()
            rest = b"".join([part async for part in parts])
        assert b'"code":"unavailable"' in rest and b"[DONE]" not in rest


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("play", [[chunk("a")], []])
async def test_a_client_that_goes_ends_everything_for_it_PDR_12(
    served: Served, completions: FakeCompletions, stream: bool, play: list[Any]
) -> None:
    completions.play = [*play, asyncio.Event()]
    asking = asyncio.create_task(served.http.post("/chat/completions", json={**BODY, "stream": stream}))
    await eventually(lambda: completions.open == 1)
    asking.cancel()
    await eventually(lambda: completions.open == 0 and completions.aborted == 1)
    await eventually(lambda: counted("completions_open") == 0)


@pytest.mark.timeout(300)
async def test_a_thousand_random_aborts_leave_nothing_open_PDR_12(served: Served, completions: FakeCompletions) -> None:
    """Clients go at any moment; some schedulers fail; at the end nothing is counted as open anywhere."""
    rng = random.Random(12)
    plays: list[Any] = [None, [chunk("a"), Unavailable("sampler lost")], [chunk("a"), asyncio.Event()]]

    async def one(number: int) -> None:
        body = {**BODY, "stream": number % 3 != 0, "n": 1 + number % 4, "max_tokens": 4}
        if number % 10 == 0:
            body["model"] = "nobody"
        try:
            async with asyncio.timeout(rng.random() * 0.15):
                async with served.http.stream("POST", "/chat/completions", json=body) as answer:
                    async for _ in answer.aiter_bytes():
                        await asyncio.sleep(rng.random() * 0.02)
        except (TimeoutError, httpx.HTTPError):
            pass

    for start in range(0, ABORTS, AT_ONCE):
        completions.play = plays[start // AT_ONCE % len(plays)]
        await asyncio.gather(*(one(start + number) for number in range(AT_ONCE)))
    assert completions.aborted > 50, "many were aborted on their way"
    await eventually(lambda: completions.open == 0)
    await eventually(lambda: counted("completions_open") == 0)
    await eventually(lambda: counted("http_requests_open") == 0)


async def test_a_slow_client_is_counted_until_its_last_byte(served: Served, completions: FakeCompletions) -> None:
    before = counted("completions_total", route="/chat/completions", streamed="true", outcome="ok")
    held = asyncio.Event()
    completions.play = [chunk("a"), held, chunk("b", finish="stop")]
    stream: Any = await served.chat(stream=True)
    await anext(stream)
    assert counted("completions_open") == 1
    held.set()
    assert len([one async for one in stream]) == 1
    await eventually(lambda: counted("completions_open") == 0)
    assert counted("completions_total", route="/chat/completions", streamed="true", outcome="ok") == before + 1


async def test_an_answer_that_would_not_fit_is_counted_as_refused(served: Served, completions: FakeCompletions) -> None:
    """A scheduler has taken it up by then: its generation is ended, too."""
    labels = {"route": "/completions", "streamed": "false"}
    refused, gone = (counted("completions_total", **labels, outcome=one) for one in ("invalid_input", "gone"))
    with pytest.raises(openai.BadRequestError):
        await served.said(n=64, logprobs=20, max_tokens=4_000)
    assert counted("completions_total", **labels, outcome="invalid_input") == refused + 1
    assert counted("completions_total", **labels, outcome="gone") == gone
    await eventually(lambda: completions.open == 0)


async def test_the_first_token_is_counted_once_though_a_choice_has_none(
    served: Served, completions: FakeCompletions
) -> None:
    before = counted("completion_first_token_seconds_count", route="/completions")
    completions.play = [chunk("", finish="stop"), chunk("a", sequence=1), chunk("b", sequence=1, finish="stop")]
    answer = await served.said(n=2)
    assert [one.text for one in answer.choices] == ["", "ab"]
    assert counted("completion_first_token_seconds_count", route="/completions") == before + 1


async def test_each_decision_leaves_one_audit_line(
    served: Served, completions: FakeCompletions, caplog: pytest.LogCaptureFixture, tenants: Any
) -> None:
    caplog.set_level(logging.INFO)
    answer = await served.chat()
    completions.play = None
    await served.http.post("/completions", json={"model": "nobody", "prompt": "x"})
    lines = [record.fields for record in caplog.records if record.name.endswith("audit")]  # type: ignore[attr-defined]
    assert [(one["decision"], one["tenant"], one["op"]) for one in lines] == [
        ("admitted", tenants.first, "generate"), ("refused", tenants.first, "generate"),
    ]  # fmt: skip
    assert lines[0]["request_id"] == answer.id
    assert lines[1]["reason"] == "missing_resource"


async def test_models_are_listed_in_openais_form(served: Served) -> None:
    listed = [one async for one in served.client.models.list()]
    assert [(one.id, one.object, one.owned_by) for one in listed] == [(BASE_MODEL, "model", "tinkermesh")]
    assert (await served.client.models.retrieve(BASE_MODEL)).id == BASE_MODEL
