"""One HTTP connection whose request line and headers are bounded in size and in time.

uvicorn bounds bodies through the application and idle connections by its keep-alive, but takes
headers without end, from anybody, before a key is seen.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.common.errors import InvalidInput, TinkermeshError, TooLarge
from services.gateway.errors import error_body

MAX_HEADER_BYTES = 64 * 1024
IDLE_CLOSE_SECONDS = 1.0


class Connection(HttpToolsProtocol):  # type: ignore[misc]  # untyped here
    """Closed after `header_seconds` without a whole header, counted from its opening or the request's first byte.

    Larger headers are answered 431, what is not HTTP at all 400, both as JSON like every refusal.

    When the server stops, whatever still arrives is answered with ``connection: close``. An idle connection is
    closed only after IDLE_CLOSE_SECONDS: a client may just be sending, and would lose that request.
    """

    def __init__(self, *arguments: Any, header_seconds: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._header_seconds = header_seconds
        self._header_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None  # set while a header is awaited
        self._too_large = False
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data) if self._deadline is not None else 0
        super().data_received(data)
        if self._deadline is not None and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse_header()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._await_header()

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEADER_BYTES:
            self._too_large = True
            raise TooLarge("headers")  # ends the parsing; `data_received` then sends the answer
        self._header_came()
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        self._stopping = True
        if self._idle():
            self.loop.call_later(IDLE_CLOSE_SECONDS, self._close_idle)
        else:
            self.cycle.keep_alive = False

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_idle(self) -> None:
        if self._idle():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_header()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, InvalidInput("this is not an HTTP request"))

    def _await_header(self) -> None:
        self._header_bytes = 0
        self._deadline = self.loop.call_later(self._header_seconds, self.transport.close)

    def _header_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_header(self) -> None:
        error = TooLarge(f"request line and headers have more than {MAX_HEADER_BYTES} bytes")
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, error)

    def _refuse(self, status: HTTPStatus, error: TinkermeshError) -> None:
        """Answers and closes, once."""
        self._header_came()
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error_body(error))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
