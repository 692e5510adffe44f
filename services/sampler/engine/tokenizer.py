"""The model's own tokenizer and chat template."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from services.common.errors import InvalidInput
from services.sampler.conversation import Conversation, Message

# A template is code; what it raises for messages it was not written for is anything of these.
_TEMPLATE_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

_SPACE = "\u2581"  # stands for a space in vocabularies that are not of bytes, as <0xE4> for a byte
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")


def _characters_of_bytes() -> dict[str, int]:
    """How a byte-level vocabulary writes each byte: printable ones as they are, the others as U+0100 and following."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _characters_of_bytes()


class ModelTokenizer:
    """Implements ports.Tokenizer. Apart from the engine's own copy: `encode` and `decode` may run in two threads."""

    def __init__(self, model: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(model))
        self._decoder: Any = copy.deepcopy(self._tokenizer.backend_tokenizer)
        self._byte_level = '"ByteLevel"' in json.dumps(json.loads(self._decoder.to_str())["decoder"])
        added = self._tokenizer.added_tokens_decoder.items()
        self._added: dict[int, str] = {int(token): content.content for token, content in added}
        self._special = frozenset(int(token) for token, content in added if content.special)
        self._reserved = frozenset(inspect.signature(self._tokenizer.apply_chat_template).parameters)

    @property
    def special(self) -> frozenset[int]:
        return self._special

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._decoder.decode(list(tokens), skip_special_tokens=False))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def piece(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        text = self._decoder.id_to_token(token) if token >= 0 else None
        if text is None:
            return b""
        if self._byte_level and all(character in _BYTES for character in text):
            return bytes(_BYTES[character] for character in text)
        if byte := _FALLBACK.fullmatch(text):
            return bytes.fromhex(byte[1])
        return str(text).replace(_SPACE, " ").encode()

    def render(self, conversation: Conversation) -> list[int]:
        """Raises InvalidInput: the model has no template, or it refuses the conversation."""
        template = self._template()
        if taken := sorted(self._reserved & conversation.template_kwargs.keys()):
            raise InvalidInput(f"chat_template_kwargs.{taken[0]} is not a variable of the template")
        try:
            tokens = self._tokenizer.apply_chat_template(
                [_known_role(message, template) for message in conversation.messages],
                tools=conversation.tools,
                add_generation_prompt=conversation.add_generation_prompt,
                continue_final_message=conversation.continue_final_message,
                tokenize=True,
                return_dict=False,
                **conversation.template_kwargs,
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidInput(f"messages: the model's chat template does not take them: {error}") from error
        return list(tokens)

    def _template(self) -> str:
        """The source of all templates the model has."""
        template = self._tokenizer.chat_template
        if not template:
            raise InvalidInput(
                "this model has no chat template: send a prompt to completions, or put a chat_template.jinja "
                "into the model's directory and start its samplers again"
            )
        return str(template)


def _known_role(message: Message, template: str) -> Message:
    """A template drops a role it does not know without a word; most know "developer" by its former name only."""
    if message["role"] == "developer" and "developer" not in template:
        return {**message, "role": "system"}
    return message
