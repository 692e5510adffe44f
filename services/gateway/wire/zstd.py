"""Bounded zstd decompression: a hostile frame costs at most its cap in time and memory."""

from __future__ import annotations

from typing import NamedTuple

import zstandard

from services.common.errors import InvalidInput, TooLarge

_MAX_WINDOW = 1 << 25
_STEP = 1 << 20


class ZstdCap(NamedTuple):
    """Output may reach `free_bytes`, beyond that `max_ratio` times the input, and never `max_bytes`."""

    max_bytes: int
    max_ratio: int
    free_bytes: int

    def allowed(self, compressed: int) -> int:
        return min(self.max_bytes, max(self.free_bytes, self.max_ratio * compressed))


def decompress(data: bytes, cap: ZstdCap) -> bytes:
    """One whole zstd frame, with or without a content size.

    Raises InvalidInput for corrupt, truncated or trailing bytes, TooLarge above the cap.
    """
    try:
        _measure(data, cap.allowed(len(data)))
        return _decompress_frame(data)
    except zstandard.ZstdError as error:
        raise InvalidInput(f"request body is not valid zstd: {error}") from error


def _measure(data: bytes, allowed: int) -> None:
    # The reader bounds each read but hides truncation, so it only measures.
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).stream_reader(data)
    size = 0
    while chunk := reader.read(_STEP):
        size += len(chunk)
        if size > allowed:
            raise TooLarge(
                f"request body decompresses to more than the {allowed} bytes allowed for {len(data)} compressed ones"
            )


def _decompress_frame(data: bytes) -> bytes:
    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
    content: bytes = frame.decompress(data)
    if not frame.eof:
        raise InvalidInput("request body is a truncated zstd frame")
    if frame.unused_data:
        raise InvalidInput(f"request body has {len(frame.unused_data)} bytes after its zstd frame; send one frame")
    return content
