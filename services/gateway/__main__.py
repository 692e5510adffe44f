"""``python -m services.gateway``: serve until SIGTERM or SIGINT, then exit 0."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn

from services.common import audit
from services.common.errors import InvalidInput, Unavailable
from services.common.keyring import load_pepper
from services.common.metrics_server import serving
from services.common.process import service_main, write_port
from services.gateway.app import create_app
from services.gateway.connection import Connection
from services.gateway.gateway import Gateway
from services.gateway.metrics import GATEWAY
from services.gateway.settings import Settings
from services.gateway.upstream.target import scheduler_target

log = logging.getLogger(__name__)

_BACKLOG = 2048
_FILES = 65_536
_KEEP_ALIVE_SECONDS = 75  # longer than a client's pool keeps an idle connection it may still reuse


class _Server(uvicorn.Server):  # type: ignore[misc]  # untyped here
    """Leaves signals to us: uvicorn would raise them again at its end and spoil the exit code."""

    def __init__(self, config: uvicorn.Config, on_serving: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_serving = on_serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_serving()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    return service_main("gateway", Settings, lambda _: f"{socket.gethostname()}-{os.getpid()}", _run)


def _run(settings: Settings) -> None:
    _check(settings)
    if settings.audit_file:
        audit.write_to(Path(settings.audit_file), "gateway", settings.audit_file_bytes)
    _allow_many_connections()
    with serving("gateway", settings, GATEWAY), asyncio.Runner(loop_factory=_loop_factory) as runner:
        runner.run(_serve(settings))


def _check(settings: Settings) -> None:
    """What would otherwise come up inside the application's start, where uvicorn shows a traceback for it."""
    load_pepper(Path(settings.pepper_file))
    scheduler_target(settings.scheduler)


def _allow_many_connections() -> None:
    """Every open long poll is a connection; the usual soft limit of 1,024 files is less than one rl batch."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _serve(settings: Settings) -> None:
    """Until it is told to stop. Raises Unavailable when it could not start, which the log explains."""
    listener = _listener(settings)
    running: list[Gateway] = []
    config = uvicorn.Config(
        create_app(settings, running.append),
        http=partial(Connection, header_seconds=settings.header_timeout_seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(settings.drain_seconds),
        backlog=_BACKLOG,
        server_header=False,
    )
    server = _Server(config, partial(_announce, listener.getsockname()[1], settings.port_file))
    _on_signals(server, running)
    await server.serve(sockets=[listener])
    if not server.started:
        raise Unavailable("it could not start")


def _on_signals(server: uvicorn.Server, running: list[Gateway]) -> None:
    def stop() -> None:
        log.info("stopping: open polls are answered, nothing new is accepted")
        for gateway in running:
            gateway.drain()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _listener(settings: Settings) -> socket.socket:
    """The inherited socket, or a new one. Raises InvalidInput when it cannot be had."""
    try:
        if settings.listen_fd is not None:
            return socket.socket(fileno=settings.listen_fd)
        return _bind(settings.listen)
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        where = settings.listen if settings.listen_fd is None else f"descriptor {settings.listen_fd}"
        raise InvalidInput(f"cannot listen on {where}: {error}") from error


def _bind(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise InvalidInput(f"settings of gateway: listen {listen!r} is not host:port")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]") or "0.0.0.0", int(port)))
    listener.listen(_BACKLOG)
    return listener


def _announce(port: int, port_file: str) -> None:
    write_port(port_file, port)
    log.info("serving on port %d", port)


if __name__ == "__main__":
    sys.exit(main())
