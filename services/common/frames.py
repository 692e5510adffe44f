"""Bytes larger than one gRPC message travel as frames of at most 1 MiB."""

from __future__ import annotations

from collections.abc import Iterator

FRAME_BYTES = 1 << 20


def frames(data: bytes | memoryview) -> Iterator[bytes]:
    """`data` cut into frames; nothing for empty data."""
    view = memoryview(data)
    for start in range(0, len(view), FRAME_BYTES):
        yield bytes(view[start : start + FRAME_BYTES])
