"""One request's answer as it comes in: events of a stream, or everything at its end; and what was used."""

from __future__ import annotations

import time
import uuid
from typing import Any

import numpy as np
from tinkermesh.v1 import completions_pb2 as pb

from services.common.datum_blocks import ITEM_BYTES
from services.gateway.openai.checks import Wish
from services.gateway.openai.deltas import Delta, Reader
from services.gateway.openai.forms import ChatForm, Form


class Answer:
    def __init__(self, form: Form, wish: Wish) -> None:
        self.id = f"{form.prefix}-{uuid.uuid4().hex}"
        self._form = form
        self._wish = wish
        self._created = int(time.time())
        self._readers: dict[int, Reader] = {}
        self._whole: dict[int, Delta] = {}
        self._prompts: list[pb.StartedPrompt] = []
        self._echoes: list[str] = []
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0

    def started(self, started: pb.GenerateStarted, asked: pb.GenerateRequest) -> None:
        self._prompts = list(started.prompts)
        self.prompt_tokens = sum(len(one.tokens) // ITEM_BYTES for one in started.prompts)
        if self._wish.echo:
            self._echoes = [_text(*both) for both in zip(asked.prompts, started.prompts, strict=True)]

    # ---- a stream ----------------------------------------------------------------------------

    def event(self, chunk: pb.GeneratedChunk) -> dict[str, Any] | None:
        """None where there is nothing to tell: of a character only some bytes are there."""
        index, delta, first = self._read(chunk)
        told = delta.text or delta.finish or first or delta.tokens or self._wish.token_ids
        if not told:
            return None
        choice = self._dressed(self._form.event(index, delta, first=first), delta)
        made = self._head(self._form.part, [choice])
        if first and self._wish.token_ids:
            self._tell_prompt(made, choice, index)
        return {**made, "usage": None} if self._wish.usage else made

    def usage_event(self) -> dict[str, Any] | None:
        """The last one, where it was asked for."""
        return {**self._head(self._form.part, []), "usage": self.usage()} if self._wish.usage else None

    # ---- a whole answer ----------------------------------------------------------------------

    def add(self, chunk: pb.GeneratedChunk) -> None:
        index, delta, _ = self._read(chunk)
        self._whole.setdefault(index, Delta()).add(delta)

    def whole(self) -> dict[str, Any]:
        choices = [
            self._dressed(self._form.choice(index, delta), delta) for index, delta in sorted(self._whole.items())
        ]
        made = self._head(self._form.whole, choices)
        if self._wish.token_ids:
            for choice in choices:
                self._tell_prompt(made, choice, choice["index"])
        return {**made, "usage": self.usage()}

    # ---- both --------------------------------------------------------------------------------

    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def _read(self, chunk: pb.GeneratedChunk) -> tuple[int, Delta, bool]:
        """(index of the choice, what is new, whether it is its first)"""
        index = chunk.prompt * self._wish.per_prompt + chunk.sequence
        first = index not in self._readers
        delta = self._readers.setdefault(index, Reader()).delta(chunk)
        self.completion_tokens += len(delta.token_ids)
        if first:
            if chunk.sequence == 0:  # the others of a prompt find what this one computed
                self.cached_tokens += chunk.cached_tokens
            if self._echoes:
                delta.text = self._echoes[chunk.prompt] + delta.text
        return index, delta, first

    def _dressed(self, choice: dict[str, Any], delta: Delta) -> dict[str, Any]:
        if self._wish.logprobs is not None and delta.tokens:
            choice["logprobs"] = self._form.logprobs(delta.tokens)
        if self._wish.token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def _tell_prompt(self, made: dict[str, Any], choice: dict[str, Any], index: int) -> None:
        """A conversation is one prompt and told once; a completion's choices may have one each."""
        tokens = np.frombuffer(self._prompts[index // self._wish.per_prompt].tokens, "<i4").tolist()
        (made if isinstance(self._form, ChatForm) else choice)["prompt_token_ids"] = tokens

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self._created, "model": self._wish.model}
        return {**head, "choices": choices}


def _text(asked: pb.Prompt, started: pb.StartedPrompt) -> str:
    return asked.text if asked.HasField("text") else b"".join(started.pieces).decode(errors="replace")
