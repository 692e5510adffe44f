"""The port between the sampler's service half and its engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from services.common.datum_blocks import Float32, Int32
from services.common.errors import Unavailable
from services.sampler.conversation import Conversation
from services.sampler.kv_connector.leg import Part
from services.sampler.text import Decoder

MASK_LOGPROB = np.float32(-99999.0)
"""Stands for "no such alternative", with token 0."""


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """One load of one adapter version: `engine_id` is never used for anything else."""

    name: str
    engine_id: int
    directory: Path


@dataclass(frozen=True, slots=True)
class PromptQuery:
    """What is asked of the distributions along a prompt of P tokens; row i predicts token i + 1.

    rows int32 [M], never decreasing, and tokens int32 [M]: the cells to score, token -1 = skip.
    draws: tokens to draw in each of the P - 1 rows at `temperature`; seed None = drawn by the engine.
    """

    rows: Int32
    tokens: Int32
    draws: int
    temperature: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to generate; seed None = drawn by the engine."""

    sequence_id: str
    adapter: EngineAdapter | None
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop_strings: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    topk: int
    prompt_topk: int | None
    """None = the prompt is not scored; k = its logprobs and k alternatives per position."""
    cache_salt: str = ""
    """Sequences with different salts share no cached prefix."""
    query: PromptQuery | None = None
    """Only together with a prompt_topk."""
    leg: Part | None = None
    """None = all of it; an engine without a tier does any leg as all of it."""


@dataclass(frozen=True, slots=True)
class TopkRows:
    """token_ids int32 [L, k], logprobs float32 [L, k]; best first, padded with (0, MASK_LOGPROB)."""

    token_ids: Int32
    logprobs: Float32


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """cells float32 [M], raw logprobs, 0 where skipped; drawn [P - 1, draws] with raw logprobs."""

    cells: Float32
    drawn: TopkRows


@dataclass(frozen=True, slots=True)
class GeneratedSequence:
    """tokens int32 [L] with the stop token, logprobs float32 [L] of the distribution sampled from.

    finish is "stop" or "length"; anything else means the sequence is not complete.
    prompt_logprobs float32 [P], raw (temperature 1, nothing masked), NaN at 0.
    """

    tokens: Int32
    logprobs: Float32
    finish: str
    topk: TopkRows | None
    prompt_logprobs: Float32 | None
    prompt_topk: TopkRows | None
    cached_tokens: int
    answer: PromptAnswer | None = None


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """What a sequence has gained since its last delta: tokens int32 [L], logprobs float32 [L], L alternatives.

    finish is "" while it goes on, else as GeneratedSequence's.
    """

    tokens: Int32
    logprobs: Float32
    finish: str
    topk: TopkRows | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TierUsage:
    """A tier of cache blocks, as its directory is now."""

    blocks: int
    size: int
    """Bytes."""
    limit: int
    """Bytes."""
    catalogued: int | None
    """Blocks in the catalog; None = it does not answer."""
    pending: int
    """Bytes that wait to be written."""


class Tier(Protocol):
    """Cache blocks that samplers share. Both calls read its directory: not in the event loop."""

    def usage(self) -> TierUsage: ...

    def invalidate(self, keys: Sequence[str] | None) -> int:
        """Blocks that are gone now; None = all. Raises Unavailable, and then has dropped nothing."""
        ...


class EngineDead(Unavailable):
    """The engine is gone; the process must be replaced."""

    code = "engine_dead"


class Tokenizer(Decoder, Protocol):
    """`encode`, `render` and `piece` are called by one thread at a time, `decode` beside them."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def render(self, conversation: Conversation) -> list[int]:
        """By the model's chat template. Raises InvalidInput when there is none or it refuses the conversation."""
        ...

    def piece(self, token: int) -> bytes:
        """What it adds to a text, a special token's name; b"" of a token there is not."""
        ...


class Engine(Protocol):
    """Every method may raise EngineDead."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of an engine that has started."""
        ...

    @property
    def tier(self) -> Tier | None:
        """Of an engine that has started with a role."""
        ...

    @property
    def description(self) -> str: ...

    def counts(self) -> tuple[int, int]:
        """Sequences (in the engine's batch, waiting)."""
        ...

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        """Raises InvalidInput when the engine refuses it; then nothing of it is left."""
        ...

    async def remove_adapter(self, adapter: EngineAdapter) -> None: ...

    async def generate(self, request: SequenceRequest) -> GeneratedSequence:
        """Raises InvalidInput for a request the engine refuses. Cancelling frees its resources."""
        ...

    def stream(self, request: SequenceRequest) -> AsyncGenerator[SequenceDelta, None]:
        """As `generate`, told as it comes; the last delta has the finish. Closing frees its resources."""
        ...

    async def wait_dead(self) -> EngineDead:
        """Returns, with the cause, when the engine has died."""
        ...
