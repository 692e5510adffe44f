"""Chunks of one stream, kept while it has callers: each gets all of them from the start, at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tinkermesh.v1.sampler_pb2 import SampleChunk


class Feed:
    """As many chunks as tokens at most, which max_tokens bounds."""

    def __init__(self) -> None:
        self._chunks: list[SampleChunk] = []
        self._changed = asyncio.Event()
        self._closed = False

    def tell(self, chunk: SampleChunk) -> None:
        self._chunks.append(chunk)
        self._wake()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[SampleChunk]:
        at = 0
        while True:
            while at < len(self._chunks):
                yield self._chunks[at]
                at += 1
            if self._closed:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
