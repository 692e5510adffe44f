"""The model's own tokenizer and chat template."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from services.common.errors import InvalidInput
from services.sampler.conversation import Conversation, Message

# A template is code; what it raises for messages it was not written for is anything of these.
_TEMPLATE_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class ModelTokenizer:
    """Implements ports.Tokenizer. Apart from the engine's own copy: `encode` and `decode` may run in two threads."""

    def __init__(self, model: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(model))
        self._decoder: Any = copy.deepcopy(self._tokenizer.backend_tokenizer)
        added = self._tokenizer.added_tokens_decoder.items()
        self._special = frozenset(int(token) for token, content in added if content.special)
        self._reserved = frozenset(inspect.signature(self._tokenizer.apply_chat_template).parameters)

    @property
    def special(self) -> frozenset[int]:
        return self._special

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._decoder.decode(list(tokens), skip_special_tokens=False))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

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
