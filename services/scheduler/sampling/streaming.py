"""What makes a stream of chunks a success: bounded waits, and a whole end of every sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import ServerError, Unavailable

ITEM_BYTES = 4
FINISHES = ("stop", "length")


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """Seconds: until the first chunk of all, between two chunks, and of the whole stream."""

    first: float
    between: float
    whole: float


async def bounded(
    chunks: AsyncIterator[pb.SampleChunk], who: str, bounds: StreamBounds
) -> AsyncGenerator[pb.SampleChunk, None]:
    """The chunks. Raises Unavailable naming the stage that did not end in time, ServerError past the whole bound."""
    loop = asyncio.get_running_loop()
    end = loop.time() + bounds.whole
    stage, patience = "first token", bounds.first
    while True:
        left = end - loop.time()
        try:
            async with asyncio.timeout(min(patience, max(left, 0.0))):
                chunk = await anext(chunks, None)
        except TimeoutError:
            if left <= patience:
                raise ServerError(f"{who}: stage {stage!r}: the request was not finished in time") from None
            raise Unavailable(f"{who}: stage {stage!r}: nothing came for {patience:g} s") from None
        if chunk is None:
            return
        yield chunk
        stage, patience = "next token", bounds.between


async def whole(
    chunks: AsyncIterator[pb.SampleChunk], who: str, sequences: int
) -> AsyncGenerator[pb.SampleChunk, None]:
    """The chunks. Raises ServerError for a broken one, and where a sequence is without its finish or any token."""
    lengths, open_ones = [0] * sequences, set(range(sequences))
    async for chunk in chunks:
        _check(chunk, who, open_ones)
        lengths[chunk.sequence] += len(chunk.tokens) // ITEM_BYTES
        if chunk.finish:
            open_ones.discard(chunk.sequence)
            if not lengths[chunk.sequence]:
                raise ServerError(f"{who}: sequence {chunk.sequence} finished without a token")
        yield chunk
    if not any(lengths):
        raise ServerError(f"{who}: the stream was empty")
    if open_ones:
        raise ServerError(f"{who}: the stream ended before sequence {min(open_ones)} was finished")


def _check(chunk: pb.SampleChunk, who: str, open_ones: set[int]) -> None:
    if chunk.sequence not in open_ones:
        raise ServerError(f"{who}: a chunk of sequence {chunk.sequence}, which is none of those still open")
    if len(chunk.tokens) % ITEM_BYTES or len(chunk.tokens) != len(chunk.logprobs):
        sizes = f"{len(chunk.tokens)} bytes of tokens, {len(chunk.logprobs)} of logprobs"
        raise ServerError(f"{who}: a chunk of sequence {chunk.sequence} has {sizes}")
    if chunk.finish and chunk.finish not in FINISHES:
        raise ServerError(f"{who}: sequence {chunk.sequence} was cut off: {chunk.finish[:80]!r}")
