"""Reading request bodies within their limits, and answering JSON or protobuf."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from services.common.errors import InvalidInput, TooLarge

PROTOBUF = "application/x-protobuf"
_PATIENCE = 4  # limits that are read before the connection is given up
_encode = msgspec.json.Encoder().encode


def json_response(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")


def json_bytes_response(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def protobuf_response(content: bytes) -> Response:
    return Response(content, media_type=PROTOBUF)


def accepts_protobuf(request: Request) -> bool:
    return PROTOBUF in request.headers.get("accept", "").lower()


def is_protobuf(request: Request) -> bool:
    return PROTOBUF in request.headers.get("content-type", "").lower()


async def read_body(request: Request, limit: int, timeout_seconds: float) -> bytes:
    """The raw body. An oversized one is read to its end, unstored, so the client gets its answer.

    Raises TooLarge (413) above `limit` bytes, InvalidInput when it does not arrive in time.
    """
    _give_up_far_beyond(_declared(request), limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limit:
                    chunks.append(chunk)
                else:
                    chunks.clear()
                    _give_up_far_beyond(size, limit)
    except TimeoutError as error:
        raise InvalidInput(f"request body did not arrive within {timeout_seconds:g} s") from error
    except ClientDisconnect as error:
        raise InvalidInput("the client closed the connection before the body was complete") from error
    if size > limit:
        raise _too_large(size, limit)
    return b"".join(chunks)


def _declared(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0


def _give_up_far_beyond(size: int, limit: int) -> None:
    if size > _PATIENCE * limit:
        raise _too_large(size, limit)


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(f"request body has {size} bytes, the limit is {limit}; send less per request")
