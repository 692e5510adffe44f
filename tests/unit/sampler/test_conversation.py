"""Conversations are checked before a template sees them, and what is wrong is named."""

from __future__ import annotations

import json

import pytest

from services.common.errors import InvalidInput
from services.sampler.conversation import Conversation, parse_conversation

HELLO = {"role": "user", "content": "hello"}


def parsed(*messages: object, **fields: object) -> Conversation:
    return parse_conversation(json.dumps({"messages": list(messages), **fields}))


def test_messages_keep_their_fields_and_parts_of_text_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "👋"}]
    made = parsed({"role": "system", "content": parts}, {**HELLO, "name": "ann"})
    assert made.messages == [{"role": "system", "content": "a👋"}, {**HELLO, "name": "ann"}]
    assert (made.add_generation_prompt, made.continue_final_message, made.tools) == (True, False, None)


def test_arguments_of_tool_calls_are_objects_for_the_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    made = parsed(HELLO, {"role": "assistant", "content": None, "tool_calls": [call]})
    assert made.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert made.messages[1]["tool_calls"][0]["id"] == "1"


def test_a_message_that_is_continued_gets_no_generation_prompt() -> None:
    made = parsed(HELLO, {"role": "assistant", "content": "I"}, continue_final_message=True)
    assert made.continue_final_message and not made.add_generation_prompt


def call(**function: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", **function}}]}


@pytest.mark.parametrize(
    ("chat", "named"),
    [
        ("{", "chat_json is no JSON"),
        ("[" * 100_000, "chat_json is no JSON"),
        ("[]", "chat_json must be an object"),
        ("{}", "messages must be a list of at least one"),
        ({"messages": []}, "messages must be a list of at least one"),
        ({"messages": "hi"}, "messages must be a list"),
        ({"messages": [HELLO], "temperature": 1}, "chat_json has 'temperature'"),
        ({"messages": [HELLO, "hi"]}, r"messages\[1\] must be an object"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]\.role is 'None', not one of system"),
        ({"messages": [{"role": "dog", "content": "x"}]}, r"messages\[0\]\.role is 'dog'"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, r"messages\[0\]\.role"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] has neither content nor tool_calls"),
        ({"messages": [{"role": "user", "content": 7}]}, r"messages\[0\]\.content must be a text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, r"messages\[0\]\.content\[0\] must be an object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"messages\[0\]\.content\[0\]\.type is 'image_url'; this model reads text only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            r"messages\[0\]\.content\[0\]\.text must be a text",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, r"messages\[0\]\.tool_calls must be a list"),
        ({"messages": [call(name=1)]}, r"tool_calls\[0\]\.function\.name must be a text"),
        ({"messages": [call(arguments="{")]}, r"tool_calls\[0\]\.function\.arguments is no JSON"),
        ({"messages": [call(arguments="[1]")]}, r"tool_calls\[0\]\.function\.arguments must be an object"),
        ({"messages": [HELLO], "tools": {}, "add_generation_prompt": "yes"}, "add_generation_prompt must be true"),
        ({"messages": [HELLO], "tools": {"a": 1}}, "tools must be a list"),
        ({"messages": [HELLO], "tools": [1]}, r"tools\[0\] must be an object"),
        ({"messages": [HELLO], "chat_template_kwargs": [1]}, "chat_template_kwargs must be an object"),
        (
            {"messages": [HELLO], "continue_final_message": True, "add_generation_prompt": True},
            "exclude each other",
        ),
        (
            {"messages": [HELLO, {"role": "assistant", "content": ""}], "continue_final_message": True},
            "the last message has no content to continue",
        ),
    ],
)
def test_what_is_wrong_is_named(chat: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        parse_conversation(chat if isinstance(chat, str) else json.dumps(chat))
