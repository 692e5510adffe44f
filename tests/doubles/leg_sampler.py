"""A sampler double that keeps what it was asked for, and refuses or breaks off where a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import TinkermeshError, Unavailable
from services.common.grpc_boundary import Context
from tests.doubles.fake_sampler import FakeSampler


class LegSampler(FakeSampler):
    """errors: raised one by one instead of streams; break_after: chunks after which a stream dies, None = it does not;
    evictions: so many streams find their adapter evicted a moment ago."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, **options)
        self.asked: list[pb.SampleStreamRequest] = []
        self.whole: list[pb.SampleRequest] = []
        self.errors: list[TinkermeshError] = []
        self.load_errors: list[TinkermeshError] = []
        self.load_calls = 0
        self.break_after: int | None = None
        self.evictions = 0

    async def SampleStream(self, request: pb.SampleStreamRequest, context: Context) -> AsyncIterator[pb.SampleChunk]:
        self.asked.append(request)
        self._evict()
        if self.errors:
            raise self.errors.pop(0)
        told = 0
        async with aclosing(super().SampleStream(request, context)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                if told == self.break_after:
                    raise Unavailable("the engine died")
                yield chunk
                told += 1

    async def Sample(self, request: pb.SampleRequest, context: Context) -> pb.SampleReply:
        self.whole.append(request)
        self._evict()
        return await super().Sample(request, context)

    async def LoadAdapter(self, request: pb.LoadAdapterRequest, context: Context) -> pb.LoadAdapterReply:
        self.load_calls += 1
        if self.load_errors:
            raise self.load_errors.pop(0)
        return await super().LoadAdapter(request, context)

    def _evict(self) -> None:
        if self.evictions:
            self.evictions -= 1
            self.loaded.clear()
