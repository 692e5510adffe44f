"""TLS in front of a server that speaks plain TCP: bytes go through unchanged."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import TracebackType


class TlsFront:
    """`async with TlsFront(certificate, key, port) as tls_port`."""

    def __init__(self, certificate: Path, key: Path, port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._port = port
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, back_writer), (back_reader, writer)):
            pump = asyncio.create_task(_pump(source, target))
            self._pumps.add(pump)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except (OSError, ssl.SSLError):
        pass
    finally:
        target.close()
