"""The doubled scheduler's Completions: says a text token by token, or plays what a test wrote.

As in the sampler double, token n is the character with that code point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.completions_pb2_grpc import CompletionsServicer

from services.common.errors import MissingResource, TinkermeshError
from services.common.tinker_path import SCHEME, parse_tinker_path
from tests.contract.gateway.belongings import Belongings
from tests.contract.gateway.submitted import BASE_MODEL

SAID = "Grüße, 世界 🙂."
CONTEXT = 4096


def chunk(text: str, *, sequence: int = 0, prompt: int = 0, finish: str = "", **fields: Any) -> pb.GeneratedChunk:
    """One token a character, logprob -0.25 each."""
    return pb.GeneratedChunk(
        prompt=prompt,
        sequence=sequence,
        tokens=np.array([ord(one) for one in text], "<i4").tobytes(),
        logprobs=np.full(len(text), -0.25, "<f4").tobytes(),
        text=text,
        finish=finish,
        **fields,
    )


def tokens_of(prompt: pb.Prompt) -> bytes:
    text = prompt.chat_json or prompt.text
    return prompt.tokens or np.array([ord(one) for one in text], "<i4").tobytes()


class FakeCompletions(CompletionsServicer):
    def __init__(self, belongings: Belongings) -> None:
        self._belongings = belongings
        self.asked: list[pb.GenerateRequest] = []
        self.open = 0
        self.aborted = 0
        self.play: Sequence[pb.GeneratedChunk | TinkermeshError | asyncio.Event] | None = None
        self.refusal: TinkermeshError | None = None  # raised instead of `started`
        self.cached = 0

    async def Models(self, request: Any, context: Any) -> pb.CompletionModels:
        if request.model:
            self._check(request.model, request.tenant_id)
        names = [request.model] if request.model else [BASE_MODEL]
        return pb.CompletionModels(models=[pb.CompletionModel(id=name, max_context=CONTEXT) for name in names])

    def _check(self, model: str, tenant: str) -> None:
        base, _, path = ("", "", model) if model.startswith(SCHEME) else model.partition(";")
        if base not in ("", BASE_MODEL):
            raise MissingResource(f"model: {base[:300]!r} is not served here; available: {BASE_MODEL}")
        if path:
            self._belongings.owned(self._belongings.models, parse_tinker_path(path).model_id, tenant, "run")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[pb.GenerateEvent]:
        self.asked.append(request)
        self.open += 1
        try:
            yield pb.GenerateEvent(started=self._started(request))
            for one in self._said(request) if self.play is None else self.play:
                if isinstance(one, TinkermeshError):
                    raise one
                if isinstance(one, asyncio.Event):
                    await one.wait()
                    continue
                yield pb.GenerateEvent(chunk=_with_pieces(one, request))
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            self.open -= 1

    def _started(self, request: pb.GenerateRequest) -> pb.GenerateStarted:
        if self.refusal is not None:
            raise self.refusal
        self._check(request.model, request.tenant_id)
        started = pb.GenerateStarted()
        for prompt in request.prompts:
            ids = tokens_of(prompt)
            pieces = [chr(one).encode() for one in np.frombuffer(ids, "<i4")] if request.with_prompt_pieces else []
            most = request.max_tokens or request.default_tokens or CONTEXT
            started.prompts.add(tokens=ids, max_tokens=most, pieces=pieces)
        return started

    def _said(self, request: pb.GenerateRequest) -> list[pb.GeneratedChunk]:
        """Every sequence says SAID, as far as it may, interleaved."""
        most = request.max_tokens or request.default_tokens or CONTEXT
        text, finish = SAID[:most], "length" if most < len(SAID) else "stop"
        made = []
        for place, one in enumerate(text):
            for prompt in range(len(request.prompts)):
                for sequence in range(request.body.num_samples):
                    part = chunk(one, prompt=prompt, sequence=sequence)
                    part.finish = finish if place == len(text) - 1 else ""
                    part.cached_tokens = self.cached if place == 0 else 0
                    made.append(part)
        return made


def _with_pieces(one: pb.GeneratedChunk, request: pb.GenerateRequest) -> pb.GeneratedChunk:
    """With the alternatives of each token, which are its successors, a nat apart."""
    k = request.body.topk_sample_logprobs
    ids = np.frombuffer(one.tokens, "<i4")
    if request.with_pieces and not one.pieces:
        one.pieces.extend(chr(token).encode() for token in ids)
    if k and not one.HasField("topk"):
        table = ids[:, None] + np.arange(k)
        scores = np.frombuffer(one.logprobs, "<f4")[:, None] - np.arange(k)
        one.topk.CopyFrom(
            types.TopkTable(
                token_ids=table.astype("<i4").tobytes(), logprobs=scores.astype("<f4").tobytes(), k=k, length=len(ids)
            )
        )
        one.topk_pieces.extend(chr(token).encode() for token in table.reshape(-1))
    return one
