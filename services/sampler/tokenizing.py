"""Token ids of texts and conversations: bounded, and off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tinkermesh.v1.sampler_pb2 import TokenizeRequest

from services.common.errors import Busy, InvalidInput
from services.sampler.conversation import parse_conversation
from services.sampler.ports import Tokenizer

BYTES_PER_TOKEN = 32
LEAST_BYTES = 1 << 16
MAX_WAITING = 256


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
        if self._waiting >= MAX_WAITING:
            raise Busy(f"this sampler has {self._waiting} texts to tokenize; retry later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, request)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _work(self, request: TokenizeRequest) -> bytes:
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
