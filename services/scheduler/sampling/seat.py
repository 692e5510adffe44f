"""One stream at one sampler, for whom its place was taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import AdapterNotLoaded, CacheNotReady, TinkermeshError, Unavailable
from services.scheduler.sampling.generation import Wanted
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.loading import loaded
from services.scheduler.sampling.streaming import StreamBounds


def addressed(request: pb.SampleStreamRequest, wanted: Wanted) -> pb.SampleStreamRequest:
    """The request with the adapter and the tenant that its place was chosen for."""
    made = pb.SampleStreamRequest()
    made.CopyFrom(request)
    made.sample.ClearField("adapter")
    if wanted.adapter is not None:
        made.sample.adapter.CopyFrom(wanted.adapter)
    made.sample.cache_salt = wanted.tenant_id  # no tenant learns from cache hits what others prompted
    return made


class Seat:
    def __init__(self, link: SamplerLink, adapter: types.AdapterRef | None, limits: SamplingLimits) -> None:
        self._link = link
        self._adapter = adapter
        self._limits = limits

    async def stream(self, request: pb.SampleStreamRequest, end: float) -> AsyncGenerator[pb.SampleChunk, None]:
        """Chunks, `end` (loop time) at the latest. An adapter that was evicted meanwhile is loaded once more.

        Raises as generation.Generation.stream, AdapterNotLoaded when it is evicted again.
        """
        try:
            async with aclosing(self._once(request, end)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        except AdapterNotLoaded:
            await loaded(self._link, self._adapter, end)
        async with aclosing(self._once(request, end)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _once(self, request: pb.SampleStreamRequest, end: float) -> AsyncGenerator[pb.SampleChunk, None]:
        left = max(0.0, end - asyncio.get_running_loop().time())
        bounds = StreamBounds(self._limits.first_token_seconds, self._limits.next_token_seconds, left)
        try:
            async with aclosing(self._link.stream(request, bounds)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except TinkermeshError as error:
            if self._adapter is not None:
                self._link.forget(self._adapter.name)
            if isinstance(error, Unavailable) and not isinstance(error, CacheNotReady):
                self._link.suspect()
            raise
