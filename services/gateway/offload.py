"""CPU-heavy decoding leaves the event loop; small bodies stay, a thread hop costs more than they do."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Offload:
    """Few threads: each holds the interpreter lock while it parses, so more would only queue on it."""

    def __init__(self, threads: int, threshold_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self._threshold = threshold_bytes

    async def run(self, size_bytes: int, call: Callable[..., T], *args: object) -> T:
        """``call(*args)``, on a worker when `size_bytes` is above the threshold."""
        if size_bytes <= self._threshold:
            return call(*args)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(context.run, call, *args))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
