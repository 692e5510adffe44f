"""A generation wherever it was placed; what breaks before anybody saw a token of it begins anew elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import Busy, DecodeInterrupted, ServerError, TinkermeshError, Unavailable
from services.scheduler import metrics
from services.scheduler.sampling.generation import Wanted
from services.scheduler.sampling.legs import is_whole
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.seat import Seat, addressed
from services.scheduler.sampling.split import Chunks, split_stream
from services.scheduler.sampling.spot import Seats, Spot

log = logging.getLogger(__name__)

Place = tuple[Spot, Seats]


class Flow:
    """Implements generation.Generation. `move` gives the place back and answers another one, until a loop time."""

    def __init__(
        self, place: Place, move: Callable[[float], Awaitable[Place]], wanted: Wanted, limits: SamplingLimits
    ) -> None:
        self._spot, self._seats = place
        self._move = move
        self._wanted = wanted
        self._limits = limits

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        return self._spot.sampler_ids

    async def stream(self, request: pb.SampleStreamRequest, seconds: float) -> AsyncGenerator[pb.SampleChunk, None]:
        """See the port. The adapter and the salt are the place's, whatever the request says."""
        end = asyncio.get_running_loop().time() + seconds
        asked, attempt = addressed(request, self._wanted), 0
        while True:
            told = False
            try:
                async with aclosing(self._attempt(asked, attempt, end)) as chunks:
                    async for chunk in chunks:
                        told = True
                        yield chunk
                return
            except TinkermeshError as error:
                self._give_up(error, attempt, told=told)
                log.warning("pool %s on %s: begins anew: %s", self._wanted.pool, self.sampler_ids, error)
            attempt += 1
            metrics.flow_retries.labels(self._wanted.pool).inc()
            self._spot, self._seats = await self._move(end)

    def _give_up(self, error: TinkermeshError, attempt: int, *, told: bool) -> None:
        """Raises unless it may be tried again: what is the caller's own fault stays so, and so does what was told."""
        split = self._spot.prefill is not None
        if told and split:
            raise DecodeInterrupted(f"after output had been given: {error.message}") from error
        transient = isinstance(error, (ServerError, Busy) if split else Unavailable)
        if told or not transient or attempt >= self._limits.flow_retries:
            raise error

    def _attempt(self, request: pb.SampleStreamRequest, attempt: int, end: float) -> Chunks:
        chunks = self._chunks(request, attempt, end)
        return chunks if self._wanted.at_once else _at_the_end(chunks)

    def _chunks(self, request: pb.SampleStreamRequest, attempt: int, end: float) -> Chunks:
        first = Seat(self._spot.prompt_link, self._wanted.adapter, self._limits)
        if self._spot.prefill is not None and not is_whole(request.sample.body):
            rest = Seat(self._spot.link, self._wanted.adapter, self._limits)
            return split_stream(request, attempt, first, rest, end, self._seats.leave_prefill)
        return first.stream(_numbered(request, attempt), end)


def _numbered(request: pb.SampleStreamRequest, attempt: int) -> pb.SampleStreamRequest:
    """A sampler answers a repeated id from the run it knows, which may be the one that was given up."""
    made = pb.SampleStreamRequest()
    made.CopyFrom(request)
    made.sample.request_id += f".{attempt}" if attempt else ""
    return made


async def _at_the_end(chunks: Chunks) -> Chunks:
    async with aclosing(chunks):
        whole = [chunk async for chunk in chunks]
    for chunk in whole:
        yield chunk
