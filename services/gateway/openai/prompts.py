"""`prompt` and `messages` as the scheduler takes them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from tinkermesh.v1 import completions_pb2 as pb

from services.common.errors import InvalidInput
from services.gateway.openai.bodies import Chat, Completion

MAX_MESSAGES = 4_096
_IDS = msgspec.json.Decoder(list[int])
_ANY = msgspec.json.Decoder(str | list[Any])


def prompts_of(body: Completion) -> list[pb.Prompt]:
    """A text, a flat list of token ids (one prompt), or a list of either. Raises InvalidInput."""
    special = body.add_special_tokens is not False
    raw = bytes(body.prompt)
    try:  # by far the largest form, decoded at once
        return [_of_tokens(_IDS.decode(raw), "prompt")]
    except msgspec.DecodeError:
        pass
    try:
        value = _ANY.decode(raw)
    except msgspec.DecodeError as error:  # what no field has read yet may also be no UTF-8
        raise InvalidInput("prompt: send a text in UTF-8, a list of token ids, or a list of either") from error
    if isinstance(value, str):
        return [pb.Prompt(text=value, add_special_tokens=special)]
    return [_one(item, f"prompt[{index}]", special) for index, item in enumerate(value)]


def _one(item: Any, field: str, special: bool) -> pb.Prompt:
    if isinstance(item, str):
        return pb.Prompt(text=item, add_special_tokens=special)
    if isinstance(item, list) and all(type(one) is int for one in item):
        return _of_tokens(item, field)
    raise InvalidInput(f"{field}: send a text or a list of token ids; do not mix them in one list")


def _of_tokens(ids: list[int], field: str) -> pb.Prompt:
    if not ids:
        raise InvalidInput(f"{field}: it has no tokens; send at least one")
    if min(ids) < 0 or max(ids) >= 1 << 31:
        raise InvalidInput(f"{field}: a token id is outside the vocabulary")
    return pb.Prompt(tokens=np.array(ids, "<i4").tobytes())


def chat_of(body: Chat) -> pb.Prompt:
    """The conversation for the model's own template, which a sampler checks and fills. Raises InvalidInput."""
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        raise InvalidInput(f"messages: send 1 to {MAX_MESSAGES} of them")
    chat: dict[str, Any] = {"messages": body.messages}
    if body.tools and body.tool_choice != "none":
        chat["tools"] = body.tools
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if (value := getattr(body, name)) is not None:
            chat[name] = value
    return pb.Prompt(chat_json=msgspec.json.encode(chat).decode())
