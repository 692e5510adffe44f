"""Conversations as they come in, checked before a chat template sees them.

The template is code of the model's: what it makes of a field it does not expect is anybody's guess, so nothing that is
wrong here reaches it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.common.errors import InvalidInput

ROLES = ("system", "developer", "user", "assistant", "tool")
_FIELDS = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """`content` of every message is a text or None; arguments of tool calls are objects."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)


def parse_conversation(chat_json: str) -> Conversation:
    """Raises InvalidInput naming the field."""
    try:
        chat = json.loads(chat_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"chat_json is no JSON: {error}") from error
    chat = _object(chat, "chat_json")
    if unknown := sorted(chat.keys() - set(_FIELDS)):
        raise InvalidInput(f"chat_json has {unknown[0][:100]!r}; it takes {', '.join(_FIELDS)}")
    continues = _flag(chat, "continue_final_message", default=False)
    conversation = Conversation(
        messages=_messages(chat.get("messages")),
        tools=_tools(chat.get("tools")),
        add_generation_prompt=_flag(chat, "add_generation_prompt", default=not continues),
        continue_final_message=continues,
        template_kwargs=_object(chat.get("chat_template_kwargs") or {}, "chat_template_kwargs"),
    )
    _check_ends(conversation)
    return conversation


def _check_ends(conversation: Conversation) -> None:
    if not conversation.continue_final_message:
        return
    if conversation.add_generation_prompt:
        raise InvalidInput("continue_final_message and add_generation_prompt exclude each other; set one of them")
    if not conversation.messages[-1].get("content"):
        raise InvalidInput("continue_final_message: the last message has no content to continue")


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise InvalidInput("messages must be a list of at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(value: object, where: str) -> Message:
    message = _object(value, where)
    role = message.get("role")
    if role not in ROLES:
        raise InvalidInput(f"{where}.role is {str(role)[:100]!r}, not one of {', '.join(ROLES)}")
    checked = {**message, "content": _content(message.get("content"), f"{where}.content")}
    if message.get("tool_calls"):
        checked["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    elif checked["content"] is None:
        raise InvalidInput(f"{where} has neither content nor tool_calls")
    return checked


def _content(value: object, where: str) -> str | None:
    """Parts of text are one text."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a text or a list of text parts")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(value))


def _part(value: object, where: str) -> str:
    part = _object(value, where)
    if part.get("type") != "text":
        raise InvalidInput(f"{where}.type is {str(part.get('type'))[:100]!r}; this model reads text only")
    if not isinstance(part.get("text"), str):
        raise InvalidInput(f"{where}.text must be a text")
    return str(part["text"])


def _tool_calls(value: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a list")
    return [_tool_call(call, f"{where}[{index}]") for index, call in enumerate(value)]


def _tool_call(value: object, where: str) -> dict[str, Any]:
    """Clients send the arguments as JSON in a text, templates read an object."""
    call = _object(value, where)
    function = _object(call.get("function"), f"{where}.function")
    if not isinstance(function.get("name"), str):
        raise InvalidInput(f"{where}.function.name must be a text")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{where}.function.arguments is no JSON: {error}") from error
    arguments = _object(arguments, f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _tools(value: object) -> list[dict[str, Any]] | None:
    if not value:
        return None
    if not isinstance(value, list):
        raise InvalidInput("tools must be a list")
    return [_object(tool, f"tools[{index}]") for index, tool in enumerate(value)]


def _flag(chat: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = chat.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{name} must be true or false")
    return default if value is None else value


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be an object")
    return value
