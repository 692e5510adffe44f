"""HTTP/1.1 over asyncio with a C parser: no client library between the clock and the socket."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

from httptools import HttpResponseParser

TIMEOUT_SECONDS = 60.0


@dataclass(slots=True)
class Answer:
    """`at`: time.perf_counter() when the last byte was parsed."""

    status: int = 0
    protobuf: bool = False
    body: bytes = b""
    at: float = 0.0


@dataclass(eq=False)
class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    transport: asyncio.Transport | None = None
    _answer: Answer = field(default_factory=Answer)
    _parts: list[bytes] = field(default_factory=list)
    _parser: HttpResponseParser | None = None
    _done: asyncio.Future[Answer] | None = None

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    async def request(self, message: bytes) -> Answer:
        """Raises ConnectionError when the server closes first, TimeoutError when it is silent."""
        if self.transport is None or not self.is_open:
            raise ConnectionError("connection is closed")
        self._answer, self._parts = Answer(), []
        self._parser = HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._done

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"server closed the connection: {exc}"))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._answer.protobuf = b"protobuf" in value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self._answer.at = time.perf_counter()
        self._answer.status = self._parser.get_status_code()
        self._answer.body = b"".join(self._parts)
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)
