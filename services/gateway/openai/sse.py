"""Server-sent events: bytes that are each one whole event or comment."""

from __future__ import annotations

from typing import Any

import msgspec

CONTENT_TYPE = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass each event on at once
DONE = b"data: [DONE]\n\n"
ALIVE = b": alive\n\n"

_encode = msgspec.json.Encoder().encode


def event(content: dict[str, Any]) -> bytes:
    """JSON has no line ends of its own, so one line holds it."""
    return b"data: " + _encode(content) + b"\n\n"
