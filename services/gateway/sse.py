"""Server-sent events: bytes that are each one whole event or comment, and the response they go out in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

CONTENT_TYPE = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass each event on at once

_encode = msgspec.json.Encoder().encode


def event(content: dict[str, Any], kind: str = "") -> bytes:
    """JSON has no line ends of its own, so one line holds it."""
    return (f"event: {kind}\n" if kind else "").encode() + b"data: " + _encode(content) + b"\n\n"


class EventStream(StreamingResponse):
    """`ends` is closed when the answer is over, however it ended."""

    def __init__(self, events: AsyncIterator[bytes], ends: ExitStack) -> None:
        super().__init__(events, headers=HEADERS, media_type=CONTENT_TYPE)
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._ends:
            await super().__call__(scope, receive, send)
