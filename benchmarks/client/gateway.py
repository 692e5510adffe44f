"""Requests to one gateway over as many connections as are in flight, kept open between requests."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from benchmarks.client.connection import Answer, Connection

T = TypeVar("T")
JSON = "application/json"
PROTOBUF = "application/x-protobuf"
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class Refused(Exception):
    """The mesh answered something a measurement cannot count."""


class Gateway:
    def __init__(self, host: str, port: int, api_key: str) -> None:
        self._address = (host, port)
        self._head = f"Host: {host}:{port}\r\nX-API-Key: {api_key}\r\n"
        self._idle: list[Connection] = []

    async def post(self, path: str, body: bytes, content_type: str = JSON, accept: str = JSON) -> Answer:
        message = (
            f"POST /api/v1/{path} HTTP/1.1\r\n{self._head}Accept: {accept}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        connection = self._open() or await self._connect()
        answer = await connection.request(message)
        self._idle.append(connection)
        return answer

    def _open(self) -> Connection | None:
        """A kept connection that the server has not closed for idleness."""
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        return None

    async def call(self, path: str, content: dict[str, Any]) -> Any:
        """A JSON request with a JSON answer. Raises Refused unless the status is 200."""
        return checked(path, await self.post(path, encode(content)))

    async def submit(self, path: str, body: bytes, content_type: str = JSON) -> str:
        """The request id of an accepted command. Raises Refused."""
        request_id: str = checked(path, await self.post(path, body, content_type))["request_id"]
        return request_id

    async def result(self, request_id: str) -> Answer:
        """Long polls until it is there. Raises Refused when the future failed."""
        body = encode({"request_id": request_id, "allow_metadata_only": False})
        while True:
            answer = await self.post("retrieve_future", body, accept=PROTOBUF)
            if answer.status != 408:
                return _delivered(request_id, answer)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, *self._address)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def checked(path: str, answer: Answer) -> Any:
    if answer.status != 200:
        raise Refused(f"{path}: {answer.status} {answer.body[:300]!r}")
    return decode(answer.body)


def _delivered(request_id: str, answer: Answer) -> Answer:
    if answer.status != 200 or (not answer.protobuf and "error" in decode(answer.body)):
        raise Refused(f"{request_id}: {answer.status} {answer.body[:300]!r}")
    return answer
