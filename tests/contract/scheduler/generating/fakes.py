"""The port to the samplers, doubled; and who may read what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.errors import Forbidden, InvalidInput, TinkermeshError
from services.scheduler.sampling.generation import Generation, Wanted
from tests.contract.scheduler.front.mesh import ALICE
from tests.doubles.fake_sampler import sampler_facts

MODEL = "00000000-0000-4000-8000-000000000000:train:0"
SNAPSHOT = f"tinker://{MODEL}/sampler_weights/snap"
SNAPSHOT_MADE = 1_700_000_000_000
Played = pb.SampleChunk | TinkermeshError | asyncio.Event


def chunk(text: str, *, sequence: int = 0, finish: str = "", **fields: Any) -> pb.SampleChunk:
    """One token a character."""
    tokens, scores = np.array([ord(one) for one in text], "<i4"), np.full(len(text), -0.5, "<f4")
    made = pb.SampleChunk(sequence=sequence, tokens=tokens.tobytes(), logprobs=scores.tobytes(), text=text, **fields)
    made.finish = finish
    return made


class FakeGenerations:
    """Implements Generations and PieceSource; `play` is what every stream says, `plays` what the next ones do."""

    def __init__(self) -> None:
        self.play: Sequence[Played] = [chunk("a"), chunk("b", finish="stop")]
        self.plays: list[Sequence[Played]] = []
        self.samplers: tuple[str, ...] = ("one",)
        self.wanted: list[Wanted] = []
        self.requests: list[pb.SampleStreamRequest] = []
        self.tokenized: list[pb.TokenizeRequest] = []
        self.pieces_asked: list[list[int]] = []
        self.placed = self.streaming = self.told = 0  # places and streams that are open; chunks that were taken

    @asynccontextmanager
    async def place(self, wanted: Wanted, seconds: float) -> AsyncIterator[Generation]:
        self.wanted.append(wanted)
        self.placed += 1
        try:
            yield FakeGeneration(self, self.plays.pop(0) if self.plays else self.play)
        finally:
            self.placed -= 1

    async def tokenize(self, pool: str, request: pb.TokenizeRequest, seconds: float) -> bytes:
        self.tokenized.append(request)
        text = request.chat_json or request.text
        if text == "refused":
            raise InvalidInput("messages: the template says no")
        if text == "long":
            raise InvalidInput(f"{request.WhichOneof('input')} has 9 bytes; it takes no more than 8")
        return np.array([ord(one) for one in text], "<i4").tobytes()

    async def pieces(self, pool: str, tokens: bytes, seconds: float) -> list[bytes]:
        ids = np.frombuffer(tokens, "<i4").tolist()
        self.pieces_asked.append(ids)
        return [chr(one).encode() for one in ids]


class FakeGeneration:
    def __init__(self, owner: FakeGenerations, play: Sequence[Played]) -> None:
        self._owner = owner
        self._play = play

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        return self._owner.samplers

    async def stream(self, request: pb.SampleStreamRequest, seconds: float) -> AsyncGenerator[pb.SampleChunk, None]:
        self._owner.requests.append(request)
        self._owner.streaming += 1
        try:
            for one in self._play:
                if isinstance(one, TinkermeshError):
                    raise one
                if isinstance(one, asyncio.Event):
                    await one.wait()
                    continue
                self._owner.told += 1
                yield one
                await asyncio.sleep(0)
        finally:
            self._owner.streaming -= 1


class FakeDirectory:
    """One pool with samplers of `roles`."""

    def __init__(self) -> None:
        self.roles = ["both"]

    async def pools(self) -> list[types.PoolFacts]:
        return [sampler_facts()]

    async def live(self, pool: str, kind: str) -> list[str]:
        return self.roles

    async def samplers(self, pool: str) -> list[scheduler_pb2.RegisterSamplerRequest]:
        return [scheduler_pb2.RegisterSamplerRequest(role=role) for role in self.roles]


class FakeArtifacts:
    """ALICE's snapshot of the pool's model."""

    async def weights_info(self, path: str, tenant_id: str, access_digest: str) -> scheduler_pb2.WeightsInfo:
        if tenant_id != ALICE:
            raise Forbidden(f"{path} belongs to another tenant")
        return scheduler_pb2.WeightsInfo(base_model=sampler_facts().base_model, path=path)

    async def version_directory(self, path: str, tenant_id: str, access_digest: str) -> str:
        return "runs/r/sampler_weights/_version_snap_1"

    async def find(self, path: str, tenant_id: str, access_digest: str) -> SimpleNamespace:
        return SimpleNamespace(meta=ArtifactMeta(created_unix_ms=SNAPSHOT_MADE))
