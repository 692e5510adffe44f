"""One stream at one sampler, for whom its place was taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import telemetry
from services.common.clock import now_ms
from services.common.errors import AdapterNotLoaded, CacheNotReady, TinkermeshError, Unavailable
from services.scheduler import metrics
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
        first: _FirstChunk | None = _FirstChunk(request.sample, self._link.sampler_id)
        bounds = StreamBounds(self._limits.first_token_seconds, self._limits.next_token_seconds, left)
        try:
            async with aclosing(self._link.stream(request, bounds)) as chunks:
                async for chunk in chunks:
                    if first is not None:
                        first.came()
                        first = None
                    yield chunk
        except TinkermeshError as error:
            if self._adapter is not None:
                self._link.forget(self._adapter.name)
            if isinstance(error, Unavailable) and not isinstance(error, CacheNotReady):
                self._link.suspect()
            raise


class _FirstChunk:
    """How long a leg's sampler took to its first chunk: its queue, the prompt or the blocks, one step."""

    def __init__(self, sample: pb.SampleRequest, sampler_id: str) -> None:
        self._leg = pb.Leg.Name(sample.leg).removeprefix("LEG_").lower()
        self._ids: dict[str, str | int | float | bool] = {"request_id": sample.request_id, "sampler_id": sampler_id}
        self._began_ms = now_ms()

    def came(self) -> None:
        ended_ms = now_ms()
        metrics.leg_first_token.labels(self._leg).observe((ended_ms - self._began_ms) / 1000)
        telemetry.record_span(
            f"leg.{self._leg}.first_token", telemetry.current_traceparent(), self._began_ms, ended_ms, self._ids
        )
