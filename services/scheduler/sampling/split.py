"""One request on a prefill and a decode sampler: the first token at once, the rest from where its blocks went."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from tinkermesh.v1 import sampler_pb2 as pb

from services.scheduler.sampling.legs import decode_leg, prefill_leg
from services.scheduler.sampling.seat import Seat

Arrival = pb.SampleChunk | BaseException
Chunks = AsyncGenerator[pb.SampleChunk, None]


async def split_stream(
    request: pb.SampleStreamRequest, attempt: int, prefill: Seat, decode: Seat, end: float, left: Callable[[], None]
) -> Chunks:
    """Chunks as of one sampler. A sequence that the prefill leg finished has no decode leg. `left` is called when the
    prefill sampler has done its part. Raises what a leg raises."""
    async with _followers() as (arrived, follow):
        going = 0
        async with aclosing(prefill.stream(prefill_leg(request, attempt), end)) as first:
            async for chunk in first:
                if chunk.finish == "length":
                    leg = decode_leg(request, attempt, chunk.sequence, chunk.tokens)
                    follow(decode.stream(leg, end), chunk.sequence)
                    going += 1
                    chunk.finish = ""
                yield chunk
        left()
        while going:
            arrival = await arrived.get()
            if isinstance(arrival, BaseException):
                raise arrival
            going -= bool(arrival.finish)
            yield arrival


@asynccontextmanager
async def _followers() -> AsyncIterator[tuple[asyncio.Queue[Arrival], Callable[[Chunks, int], None]]]:
    """Decode legs that run beside each other; all end with the block."""
    arrived: asyncio.Queue[Arrival] = asyncio.Queue()
    tasks: list[asyncio.Task[None]] = []

    def follow(chunks: Chunks, sequence: int) -> None:
        task = asyncio.create_task(_pump(chunks, sequence, arrived))
        task.add_done_callback(lambda done: _report(done, arrived))
        tasks.append(task)

    try:
        yield arrived, follow
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(chunks: Chunks, sequence: int, arrived: asyncio.Queue[Arrival]) -> None:
    async with aclosing(chunks):
        async for chunk in chunks:
            chunk.sequence = sequence
            chunk.cached_tokens = 0  # told with the sequence's first chunk, by the prefill leg
            arrived.put_nowait(chunk)


def _report(done: asyncio.Task[None], arrived: asyncio.Queue[Arrival]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        arrived.put_nowait(error)
