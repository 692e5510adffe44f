"""A generation on one sampler."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import TinkermeshError, Unavailable
from services.scheduler.sampling.generation import Wanted
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
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
    """Implements generation.Generation."""

    def __init__(self, link: SamplerLink, wanted: Wanted, limits: SamplingLimits) -> None:
        self._link = link
        self._wanted = wanted
        self._limits = limits

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        return (self._link.sampler_id,)

    async def stream(self, request: pb.SampleStreamRequest, seconds: float) -> AsyncGenerator[pb.SampleChunk, None]:
        """See the port. The adapter and the salt are the place's, whatever the request says."""
        bounds = StreamBounds(self._limits.first_token_seconds, self._limits.next_token_seconds, seconds)
        chunks = self._link.stream(addressed(request, self._wanted), bounds)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except TinkermeshError as error:
            if self._wanted.adapter is not None:
                self._link.forget(self._wanted.adapter.name)
            if isinstance(error, Unavailable):
                self._link.suspect()
            raise
