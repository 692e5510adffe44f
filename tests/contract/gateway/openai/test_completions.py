"""/completions with the unmodified client: text, choices, logprobs, usage, streamed and whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest

from services.common.errors import InvalidInput
from tests.contract.gateway.fake_completions import SAID, FakeCompletions, chunk
from tests.contract.gateway.openai.conftest import Served
from tests.contract.gateway.submitted import BASE_MODEL


async def test_a_text_is_completed(served: Served, completions: FakeCompletions) -> None:
    answer = await served.said()
    assert answer.object == "text_completion" and answer.model == BASE_MODEL
    assert answer.choices[0].text == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert completions.asked[0].prompts[0].text == "Hi"


async def test_usage_counts_prompt_completion_and_cached_tokens(served: Served, completions: FakeCompletions) -> None:
    completions.cached = 1
    answer = await served.said(n=3, max_tokens=4)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 12, 14)
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


async def test_without_max_tokens_sixteen_are_asked_for_as_openai_does(
    served: Served, completions: FakeCompletions
) -> None:
    await served.client.completions.create(model=BASE_MODEL, prompt="Hi")
    assert completions.asked[0].default_tokens == 16 and not completions.asked[0].HasField("max_tokens")


async def test_a_stream_says_the_same_as_the_whole_answer_PDR_04(served: Served) -> None:
    events = [one async for one in await served.client.completions.create(
        model=BASE_MODEL, prompt="Hi", max_tokens=99, stream=True
    )]  # fmt: skip
    assert "".join(one.choices[0].text for one in events) == SAID
    assert [one.choices[0].finish_reason for one in events[-2:]] == [None, "stop"]
    assert all(one.usage is None for one in events)


async def test_the_raw_stream_is_well_formed_and_ends_in_done_PDR_04(served: Served) -> None:
    events, done = await served.events("/completions", prompt="Hi", max_tokens=3)
    assert done and len(events) == 3
    assert len({one["id"] for one in events}) == 1


async def test_one_token_is_a_whole_stream_PDR_04(served: Served) -> None:
    """Under prefill/decode a request for one token, or an immediate end, never reaches a decode sampler."""
    events, done = await served.events("/completions", prompt="Hi", max_tokens=1)
    assert done and [one["choices"][0]["finish_reason"] for one in events] == ["length"]
    events, done = await served.events("/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1)
    assert done and events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "G"}


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("one", 1), ([1, 2, 3], 1), (["one", "two"], 2), ([[1, 2], [3]], 2)],
)
async def test_every_form_of_prompt_is_taken_PDR_07(
    served: Served, completions: FakeCompletions, prompt: Any, count: int
) -> None:
    """A flat list of numbers is one prompt."""
    answer = await served.said(prompt=prompt, n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == list(range(2 * count))
    assert len(completions.asked[0].prompts) == count
    if prompt == [1, 2, 3]:
        assert np.frombuffer(completions.asked[0].prompts[0].tokens, "<i4").tolist() == prompt


async def test_choices_of_several_prompts_are_told_apart_in_a_stream(
    served: Served, completions: FakeCompletions
) -> None:
    completions.play = [
        chunk("a", prompt=0, sequence=0), chunk("d", prompt=1, sequence=1, finish="stop"),
        chunk("b", prompt=0, sequence=1, finish="stop"), chunk("c", prompt=1, sequence=0, finish="stop"),
        chunk("A", prompt=0, sequence=0, finish="length"),
    ]  # fmt: skip
    events, done = await served.events("/completions", prompt=["x", "y"], n=2)
    said: dict[int, str] = {}
    for one in events:
        said[one["choices"][0]["index"]] = said.get(one["choices"][0]["index"], "") + one["choices"][0]["text"]
    assert done and said == {0: "aA", 1: "b", 2: "c", 3: "d"}


async def test_the_last_event_tells_the_usage_where_it_was_asked_for_PDR_11(served: Served) -> None:
    stream: Any = await served.said(stream=True, stream_options={"include_usage": True}, max_tokens=3)
    events = [one async for one in stream]
    assert events[-1].choices == [] and events[-1].usage.completion_tokens == 3
    raw, _ = await served.events("/completions", prompt="Hi", max_tokens=3, stream_options={"include_usage": True})
    assert [one["usage"] is None for one in raw] == [True, True, True, False]
    raw, _ = await served.events("/completions", prompt="Hi", max_tokens=3)
    assert not any("usage" in one for one in raw)


async def test_logprobs_stand_beside_their_tokens_PDR_15(served: Served, completions: FakeCompletions) -> None:
    answer = await served.said(logprobs=2, extra_body={"return_token_ids": True})
    logprobs, ids = answer.choices[0].logprobs, answer.choices[0].model_dump()["token_ids"]
    assert logprobs is not None and logprobs.tokens is not None and logprobs.text_offset is not None
    assert logprobs.tokens == list(SAID) and logprobs.token_logprobs == [-0.25] * len(SAID)
    assert [ord(one) for one in logprobs.tokens] == ids
    assert [SAID[at] for at in logprobs.text_offset] == logprobs.tokens
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"G": -0.25, "H": -1.25}
    assert completions.asked[0].body.topk_sample_logprobs == 2


async def test_tokens_that_are_parts_of_a_character_are_aligned_too_PDR_14_PDR_15(
    served: Served, completions: FakeCompletions
) -> None:
    """世 comes as three tokens of a byte each: text only with the last, logprobs with each."""
    pieces = ["世".encode()[at : at + 1] for at in range(3)]
    parts = [chunk("?", pieces=[piece]) for piece in pieces]
    for part, text in zip(parts, ("", "", "世"), strict=True):
        part.text = text
    completions.play = [*parts, chunk("!", finish="stop")]
    answer = await served.said(logprobs=0)
    assert answer.choices[0].text == "世!"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96", "!"]
    assert logprobs.text_offset == [0, 0, 0, 1]
    completions.play = [*parts, chunk("!", finish="stop")]
    stream: Any = await served.said(logprobs=0, stream=True)
    events = [one async for one in stream]
    assert [(one.choices[0].text, len(one.choices[0].logprobs.tokens)) for one in events] == [
        ("", 1), ("", 1), ("世", 1), ("!", 1),
    ]  # fmt: skip


async def test_token_ids_go_to_those_alone_who_asked_PDR_11(served: Served) -> None:
    plain, _ = await served.events("/completions", prompt="Hi", max_tokens=2)
    assert not any(name in str(plain) for name in ("token_ids", "prompt_token_ids"))
    whole = (await served.said(max_tokens=2)).model_dump()
    assert "token_ids" not in whole["choices"][0] and "prompt_token_ids" not in whole["choices"][0]
    told, _ = await served.events("/completions", prompt="Hi", max_tokens=2, return_token_ids=True)
    assert told[0]["choices"][0]["prompt_token_ids"] == [72, 105]
    assert [one["choices"][0]["token_ids"] for one in told] == [[71], [114]]
    assert "prompt_token_ids" not in told[1]["choices"][0]


@pytest.mark.parametrize("prompt", ["Hi ", [72, 105, 32], [0x4E16, 32]])
async def test_echo_puts_the_prompt_in_front(served: Served, prompt: Any) -> None:
    shown = prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
    assert (await served.said(prompt=prompt, echo=True)).choices[0].text == shown + SAID
    stream: Any = await served.said(prompt=prompt, echo=True, stream=True)
    assert "".join([one.choices[0].text async for one in stream]) == shown + SAID


async def test_sampling_fields_reach_the_sampler(served: Served, completions: FakeCompletions) -> None:
    await served.said(temperature=0.5, top_p=0.9, seed=7, stop=["\n", "END"], n=2, extra_body={"top_k": 5})
    body = completions.asked[0].body
    assert (body.temperature, body.top_p, body.seed, body.num_samples, body.top_k) == (0.5, 0.9, 7, 2, 5)
    assert list(body.stop.strings) == ["\n", "END"] and not body.stop.disabled
    await served.said(stop=[])
    assert not completions.asked[1].body.stop.disabled, "an empty list adds nothing; the end token still stops"


async def test_a_tenant_has_its_own_name_at_the_scheduler(
    served: Served, completions: FakeCompletions, tenants: Any
) -> None:
    await served.said()
    await served.other.completions.create(model=BASE_MODEL, prompt="Hi")
    assert [one.tenant_id for one in completions.asked] == [tenants.first, tenants.second]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 0}, "n"), ({"n": 65}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"stop": ""}, "stop"), ({"stop": ["x"] * 65}, "stop"),
        ({"logprobs": 21}, "logprobs"), ({"echo": True, "logprobs": 1}, "echo"), ({"suffix": "x"}, "suffix"),
        ({"echo": True, "prompt": [1] * 131_073}, "echo"),
        ({"best_of": 2}, "best_of"), ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"), ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": []}, "prompt"), ({"prompt": [""] * 65}, "prompt"), ({"prompt": ["x", [1]], "n": 33}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [[]]}, "prompt"), ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"best": 1}}, "best"), ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"seed": "x"}, "seed"), ({"extra_body": {"stop_token_ids": [1], "stop": "x"}}, "stop_token_ids"),
        ({"model": ""}, "model"),
    ],
)  # fmt: skip
async def test_what_is_wrong_or_not_served_is_refused_by_its_name(
    served: Served, completions: FakeCompletions, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.said(**body)
    assert refused.value.param == param, refused.value.message
    assert refused.value.type == "invalid_request_error"
    assert completions.asked == []


@pytest.mark.parametrize(
    "neutral",
    [
        {"best_of": 1}, {"best_of": 2, "n": 2}, {"presence_penalty": 0}, {"frequency_penalty": 0.0},
        {"logit_bias": {}}, {"suffix": ""}, {"user": "someone"}, {"extra_body": {"prompt_cache_key": "k"}},
    ],
)  # fmt: skip
async def test_neutral_values_of_what_is_not_served_are_taken(served: Served, neutral: dict[str, Any]) -> None:
    assert (await served.said(**neutral)).choices[0].text == SAID


async def test_what_a_scheduler_refuses_is_told_with_its_field_PDR_07(
    served: Served, completions: FakeCompletions
) -> None:
    """As it does with n > 1 and several prompts where prefill and decode samplers serve the model."""
    completions.refusal = InvalidInput("n: this model is served by prefill and decode samplers; they take n=1")
    with pytest.raises(openai.BadRequestError) as refused:
        await served.said(n=2)
    assert refused.value.param == "n"


async def test_an_answer_that_would_not_fit_is_refused_before_it_is_made(
    served: Served, completions: FakeCompletions
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.said(n=64, logprobs=20, max_tokens=4_000)
    assert refused.value.param == "max_tokens"
