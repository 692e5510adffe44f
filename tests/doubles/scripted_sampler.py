"""A sampler double whose streams do what a test says: they hang, break off, end early, or run to their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import TinkermeshError
from services.common.grpc_boundary import Context
from tests.doubles.fake_sampler import FakeSampler


class ScriptedSampler(FakeSampler):
    """Each sequence is `length` tokens, 100 * sequence + position, with logprob -1 - position; finish `finish`.

    after: chunks that come before `fault` happens: "hang" or "end"; with an `error` that is raised instead.
    """

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, **options)
        self.length = 3
        self.finish = "length"
        self.fault = ""
        self.after = 0
        self.error: TinkermeshError | None = None
        self.streams: list[pb.SampleStreamRequest] = []
        self.open_streams = 0
        self.aborted: list[str] = []
        self.load_error: TinkermeshError | None = None
        self.load_gate: asyncio.Event | None = None
        self.load_calls = 0
        self.described = (0, 0)
        self.describes = 0

    async def SampleStream(self, request: pb.SampleStreamRequest, context: Context) -> AsyncIterator[pb.SampleChunk]:
        self.streams.append(request)
        self.open_streams += 1
        try:
            for number, chunk in enumerate(self._chunks(request)):
                if number == self.after and self.fault:
                    await self._break()
                    return
                yield chunk
        finally:
            self.open_streams -= 1

    def _chunks(self, request: pb.SampleStreamRequest) -> list[pb.SampleChunk]:
        body = request.sample.body
        count = min(self.length, body.max_tokens)
        return [
            pb.SampleChunk(
                sequence=sequence,
                tokens=np.array([100 * sequence + at], "<i4").tobytes(),
                logprobs=np.array([-1.0 - at], "<f4").tobytes(),
                finish=self.finish if at == count - 1 else "",
            )
            for at in range(count)
            for sequence in range(body.num_samples)
        ]

    async def _break(self) -> None:
        if self.error is not None:
            raise self.error
        if self.fault == "hang":
            await asyncio.Event().wait()

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortReply:
        self.aborted.append(request.request_id)
        return pb.AbortReply(was_running=True)

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterReply:
        self.load_calls += 1
        if self.load_gate is not None:
            await self.load_gate.wait()
        if self.load_error is not None:
            raise self.load_error
        return await super().LoadAdapter(request, context)

    async def Describe(self, request: pb.DescribeSamplerRequest, context: Context) -> pb.SamplerDescription:
        self.describes += 1
        answer = await super().Describe(request, context)
        answer.running, answer.waiting = self.described
        return answer

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeReply:
        """One token per character: its code point."""
        if self.error is not None:
            raise self.error
        return pb.TokenizeReply(tokens=np.array([ord(one) for one in request.text], "<i4").tobytes())
