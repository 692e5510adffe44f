"""Raw connections: headers without end, without hurry, and what is not HTTP at all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from uvicorn.server import ServerState

from services.gateway.connection import MAX_HEADER_BYTES, Connection

pytestmark = pytest.mark.timeout(30)
HEADER_SECONDS = 0.5


async def answers_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Without a look at the body, as the gateway does without a key."""
    await JSONResponse({"path": Request(scope).url.path})(scope, receive, send)


@pytest.fixture
def state() -> ServerState:
    return ServerState()


@pytest.fixture
async def port(state: ServerState) -> AsyncIterator[int]:
    config = uvicorn.Config(answers_at_once, ws="none", log_config=None, timeout_keep_alive=60)
    connection = partial(Connection, config, state, {}, header_seconds=HEADER_SECONDS)
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, port: int) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, Any]:
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            size = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))[15:])
            return int(head.split()[1]), json.loads(await self.reader.readexactly(size))

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


@pytest.mark.parametrize("start", [b"GET /api/v1/healthz HTTP/1.1\r\nx-endless: ", b"GET /"], ids=["header", "path"])
async def test_header_without_end_is_cut_off_VAL_14(port: int, start: bytes) -> None:
    peer = await Peer.of(port)
    sent, block = 0, b"a" * 16_384
    await peer.send(start)
    try:
        while sent < 8 << 20:  # far beyond: the connection must end it
            await peer.send(block)
            sent += len(block)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    assert sent < 8 << 20
    await peer.closed()  # reading ends within its bound, whether or not the refusal still came through


async def test_large_headers_are_431_and_usual_ones_pass(port: int) -> None:
    def request(size: int) -> bytes:
        return b"GET /api/v1/healthz HTTP/1.1\r\nhost: x\r\nx-large: " + b"a" * size + b"\r\n\r\n"

    peer = await Peer.of(port)
    await peer.send(request(MAX_HEADER_BYTES // 2))
    assert (await peer.answer())[0] == 200
    await peer.send(request(MAX_HEADER_BYTES))
    status, body = await peer.answer()
    assert (status, body["error"], body["category"]) == (431, "too_large", "user")
    assert str(MAX_HEADER_BYTES) in body["detail"]
    assert await peer.closed()


async def test_what_is_not_http_is_400_with_a_json_body_API_06(port: int) -> None:
    peer = await Peer.of(port)
    await peer.send(b"\x16\x03\x01 this is something else\r\n\r\n")
    status, body = await peer.answer()
    assert (status, body["error"]) == (400, "invalid_input")
    assert await peer.closed()


@pytest.mark.parametrize("sent", [b"", b"GET /api/v1/healthz HTTP/1.1\r\nhost:"], ids=["nothing", "half a header"])
async def test_connection_that_sends_no_whole_header_in_time_is_closed(port: int, sent: bytes) -> None:
    peer = await Peer.of(port)
    began = time.monotonic()
    await peer.send(sent)
    assert await peer.closed()
    assert HEADER_SECONDS * 0.8 < time.monotonic() - began < HEADER_SECONDS + 5


async def test_kept_connection_may_rest_longer_than_a_header_may_take(port: int) -> None:
    peer = await Peer.of(port)
    for _ in range(2):
        await peer.send(b"GET /api/v1/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await peer.answer())[0] == 200
        await asyncio.sleep(HEADER_SECONDS * 1.3)


async def test_body_may_take_longer_than_a_header_and_be_larger(port: int) -> None:
    peer = await Peer.of(port)
    size = 4 * MAX_HEADER_BYTES
    await peer.send(b"POST /api/v1/telemetry HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size)
    await peer.send(b"{" * (size // 2))
    assert (await peer.answer())[0] == 200
    await asyncio.sleep(HEADER_SECONDS * 1.3)
    await peer.send(b"{" * (size - size // 2))
    await peer.send(b"GET /api/v1/healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await peer.answer())[0] == 200


async def test_a_request_that_meets_the_stop_is_still_answered(port: int, state: ServerState) -> None:
    """uvicorn alone closes idle connections at once, and the client that was just sending loses its request."""
    sending, idle = await Peer.of(port), await Peer.of(port)
    for peer in (sending, idle):
        await peer.send(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await peer.answer() == (200, {"path": "/first"})
    for connection in list(state.connections):
        connection.shutdown()
    await sending.send(b"GET /second HTTP/1.1\r\nhost: a\r\n\r\n")
    async with asyncio.timeout(10):
        told = await sending.reader.read()
    assert told.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in told.lower()
    assert told.endswith(b'{"path":"/second"}'), "and then it is closed"
    assert await idle.closed()
