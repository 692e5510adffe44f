"""A scripted port of what is sampled: deterministic tokens, told one at a time, that a test can hold or break.

Token n of a sequence is a hash of everything before it, as a greedy engine's is: a continuation from any
point gives what one long run would have given.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb

from services.scheduler.sampling.generation import Generation, Wanted

VOCABULARY = 512


def next_token(prompt: bytes, adapter: str, seed: int) -> tuple[int, float]:
    """(id, logprob) after the ids `prompt` (int32 little-endian)."""
    digest = hashlib.blake2b(prompt + adapter.encode() + struct.pack("<q", seed), digest_size=8).digest()
    number = int.from_bytes(digest, "little")
    return number % (VOCABULARY - 1) + 1, -float(np.float32((number >> 16) % 1000 / 250.0 + 0.001))


def long_run(prompt: list[int], tokens: int, adapter: str = "", seed: int = 0) -> list[int]:
    """What one uninterrupted sequence generates."""
    ids = np.array(prompt, "<i4").tobytes()
    made = []
    for _ in range(tokens):
        token, _ = next_token(ids, adapter, seed)
        ids += struct.pack("<i", token)
        made.append(token)
    return made


def text_of(tokens: list[int]) -> str:
    return "".join(chr(0x100 + token) for token in tokens)


def tokens_of(text: str) -> list[int]:
    """The tokenizer: one for the beginning, then one for each character."""
    return [1, *(ord(character) % VOCABULARY for character in text)]


@dataclass
class FakeGenerations:
    """Implements generation.Generations.

    `refuse` is called with what is wanted before a place is given, and may raise.
    """

    refuse: Callable[[Wanted], None] = lambda _wanted: None
    gate: asyncio.Event | None = None  # set = go on
    gate_after: int = 0  # tokens of a stream that come before the gate
    fail_after: dict[int, Exception] = field(default_factory=dict)  # stream number -> raised in the middle
    fail_at: int = 0  # tokens told before that
    requests: list[pb.SampleStreamRequest] = field(default_factory=list)
    placed: list[Wanted] = field(default_factory=list)
    tokenized: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    @asynccontextmanager
    async def place(self, wanted: Wanted, seconds: float) -> AsyncIterator[Generation]:
        self.refuse(wanted)
        self.placed.append(wanted)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            yield Place(self, len(self.placed))
        finally:
            self.in_flight -= 1

    async def tokenize(self, pool: str, request: pb.TokenizeRequest, seconds: float) -> bytes:
        self.tokenized.append(request.text)
        return np.array(tokens_of(request.text), "<i4").tobytes()


@dataclass
class Place:
    port: FakeGenerations
    number: int

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        return (f"sampler-{self.number}",)

    async def stream(self, request: pb.SampleStreamRequest, seconds: float) -> AsyncGenerator[pb.SampleChunk, None]:
        port = self.port
        number = len(port.requests)
        port.requests.append(request)
        body = request.sample.body
        ids = [body.prompt_tokens] * body.num_samples
        for told in range(body.max_tokens):
            if number in port.fail_after and told >= port.fail_at:
                raise port.fail_after[number]
            if port.gate is not None and told >= port.gate_after:
                await port.gate.wait()
            await asyncio.sleep(0)
            for sequence in range(body.num_samples):
                seed = body.seed + sequence if body.HasField("seed") else 0
                token, logprob = next_token(ids[sequence], request.sample.adapter.name, seed)
                ids[sequence] += struct.pack("<i", token)
                yield pb.SampleChunk(
                    sequence=sequence,
                    tokens=struct.pack("<i", token),
                    logprobs=struct.pack("<f", logprob),
                    text=text_of([token]) if request.with_text else "",
                    finish="length" if told + 1 == body.max_tokens else "",
                )
