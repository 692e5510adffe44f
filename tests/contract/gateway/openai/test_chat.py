"""/chat/completions with the unmodified client."""

from __future__ import annotations

from typing import Any

import msgspec
import openai
import pytest

from tests.contract.gateway.fake_completions import SAID, FakeCompletions, chunk
from tests.contract.gateway.openai.conftest import Served

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def template(completions: FakeCompletions) -> Any:
    """What the model's own template is to render."""
    return msgspec.json.decode(completions.asked[-1].prompts[0].chat_json)


async def test_a_conversation_is_answered(served: Served, completions: FakeCompletions) -> None:
    answer = await served.chat()
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == SAID and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert template(completions) == {"messages": [{"role": "user", "content": "Hi"}]}


async def test_a_stream_begins_with_the_role_and_says_the_same_PDR_04(served: Served) -> None:
    events = [one async for one in await served.chat(stream=True)]
    assert events[0].object == "chat.completion.chunk"
    assert [one.choices[0].delta.role for one in events] == ["assistant"] + [None] * (len(events) - 1)
    assert "".join(one.choices[0].delta.content or "" for one in events) == SAID
    assert [one.choices[0].finish_reason for one in events] == [None] * (len(events) - 1) + ["stop"]


async def test_the_clients_own_stream_helper_takes_it(served: Served) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    async with served.client.chat.completions.stream(model="tinkermesh/double", messages=messages, logprobs=True) as s:
        final = await s.get_final_completion()
    assert final.choices[0].message.content == SAID
    assert final.choices[0].logprobs is not None and final.choices[0].logprobs.content is not None
    assert "".join(one.token for one in final.choices[0].logprobs.content) == SAID


async def test_the_final_chunk_may_end_without_text(served: Served, completions: FakeCompletions) -> None:
    completions.play = [chunk("a"), chunk("", finish="stop")]
    events, done = await served.events("/chat/completions", messages=[{"role": "user", "content": "x"}])
    assert done and events[-1]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip


@pytest.mark.parametrize("top", [0, 3])
async def test_logprobs_name_each_token_its_bytes_and_alternatives_PDR_06_PDR_15(served: Served, top: int) -> None:
    answer = await served.chat(logprobs=True, top_logprobs=top, extra_body={"return_token_ids": True})
    content = answer.choices[0].logprobs.content
    assert [one.token for one in content] == list(SAID)
    assert b"".join(bytes(one.bytes) for one in content).decode() == SAID
    assert [ord(one.token) for one in content] == answer.choices[0].model_dump()["token_ids"]
    assert [one.logprob for one in content] == [-0.25] * len(SAID)
    assert [len(one.top_logprobs) for one in content] == [top] * len(SAID)
    assert top == 0 or content[0].top_logprobs[0].token == "G"


async def test_without_logprobs_there_are_none(served: Served, completions: FakeCompletions) -> None:
    assert (await served.chat()).choices[0].logprobs is None
    assert not completions.asked[0].with_pieces


async def test_token_ids_go_to_those_alone_who_asked_PDR_11(served: Served) -> None:
    plain, _ = await served.events("/chat/completions", messages=[{"role": "user", "content": "x"}])
    assert "token_ids" not in str(plain)
    told, _ = await served.events(
        "/chat/completions", messages=[{"role": "user", "content": "x"}], return_token_ids=True, max_tokens=2
    )
    assert [one["choices"][0]["token_ids"] for one in told] == [[71], [114]]
    assert ["prompt_token_ids" in one for one in told] == [True, False]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_either_name_bounds_the_answer_PDR_06(served: Served, completions: FakeCompletions, name: str) -> None:
    answer = await served.chat(**{name: 3})
    assert answer.choices[0].message.content == SAID[:3] and answer.choices[0].finish_reason == "length"
    assert completions.asked[0].max_tokens == 3


async def test_without_a_bound_the_rest_of_the_context_is_meant_PDR_06(
    served: Served, completions: FakeCompletions
) -> None:
    await served.chat()
    assert not completions.asked[0].HasField("max_tokens") and not completions.asked[0].HasField("default_tokens")


async def test_chat_only_fields_become_what_a_sampler_knows_PDR_06(
    served: Served, completions: FakeCompletions
) -> None:
    """The template is told of messages and tools, the sampler of its parameters, and nobody of the rest."""
    await served.chat(
        logprobs=True, top_logprobs=2, max_completion_tokens=5, response_format={"type": "text"}, tools=[TOOL],
        tool_choice="auto", parallel_tool_calls=True, n=2, reasoning_effort="low", metadata={"a": "b"}, store=False,
    )  # fmt: skip
    request = completions.asked[0]
    assert (request.body.topk_sample_logprobs, request.body.num_samples, request.max_tokens) == (2, 2, 5)
    assert template(completions) == {"messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}


async def test_a_conversation_goes_to_the_template_as_it_came(served: Served, completions: FakeCompletions) -> None:
    """What is in the messages is checked where the template is: at the sampler."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "so"},
    ]
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True}
    await served.chat(messages=messages, extra_body={**extra, "add_generation_prompt": False})
    assert template(completions) == {"messages": messages, "add_generation_prompt": False, **extra}


async def test_tools_that_may_not_be_called_are_not_told(served: Served, completions: FakeCompletions) -> None:
    await served.chat(tools=[TOOL], tool_choice="none")
    assert "tools" not in template(completions)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"), ({"messages": ["x"]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"modalities": ["audio"]}, "modalities"), ({"functions": [{"name": "x"}]}, "functions"),
        ({"extra_body": {"echo": True}}, "echo"), ({"n": 65}, "n"),
    ],
)  # fmt: skip
async def test_what_is_wrong_or_not_served_is_refused_by_its_name(
    served: Served, completions: FakeCompletions, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await served.chat(**body)
    assert refused.value.param == param, refused.value.message
    assert completions.asked == []
