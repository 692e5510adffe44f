"""Token ids of texts and conversations, and what they are made of: bounded, and off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from tinkermesh.v1.sampler_pb2 import TokenizeRequest

from services.common.errors import Busy, InvalidInput
from services.sampler.conversation import parse_conversation
from services.sampler.ports import Tokenizer

BYTES_PER_TOKEN = 32
LEAST_BYTES = 1 << 16
MAX_WAITING = 256
MAX_PIECES = 1 << 18

T = TypeVar("T")


class Tokenizing:
    """One at a time: a tokenizer is no thing for two threads, and no caller may take all cores."""

    def __init__(self, tokenizer: Tokenizer, max_context: int) -> None:
        self._tokenizer = tokenizer
        self._most = max(LEAST_BYTES, BYTES_PER_TOKEN * max_context)
        self._max_context = max_context
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._waiting = 0

    async def tokens(self, request: TokenizeRequest) -> bytes:
        """int32 little-endian. Raises InvalidInput naming the field, Busy."""
        kind = request.WhichOneof("input")
        if kind is None:
            raise InvalidInput("neither text nor chat_json is given")
        self._check_size(kind, len((request.text or request.chat_json).encode()))
        return await self._in_turn(lambda: self._tokens(request))

    async def pieces(self, tokens: bytes) -> list[bytes]:
        """The bytes of each of `tokens`, int32 little-endian. Raises InvalidInput, Busy."""
        if len(tokens) % 4 or len(tokens) // 4 > MAX_PIECES:
            raise InvalidInput(f"tokens has {len(tokens)} bytes; it must hold at most {MAX_PIECES} int32 tokens")
        ids: list[int] = np.frombuffer(tokens, "<i4").tolist()
        return await self._in_turn(lambda: [self._tokenizer.piece(token) for token in ids])

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise Busy(f"this sampler has {self._waiting} texts to tokenize; retry later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _tokens(self, request: TokenizeRequest) -> bytes:
        if request.WhichOneof("input") == "chat_json":
            tokens = self._tokenizer.render(parse_conversation(request.chat_json))
        else:
            tokens = self._tokenizer.encode(request.text, add_special_tokens=request.add_special_tokens)
        return np.asarray(tokens, "<i4").tobytes()

    def _check_size(self, field: str, size: int) -> None:
        if size > self._most:
            raise InvalidInput(
                f"{field} has {size} bytes; this model's context of {self._max_context} tokens "
                f"takes no more than {self._most}"
            )
