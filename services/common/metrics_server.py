"""Answers ``GET /metrics`` on a port of its own, in threads beside whatever the process does.

Plain HTTP without a key: what is told here names nobody, and the chart's network policy says who may ask. A scrape
reads memory only; a few may run at once, and further connections are closed unanswered.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from services.common import metrics
from services.common.errors import InvalidInput
from services.common.metrics import COMMON, MetricSet
from services.common.process import write_port
from services.common.settings import ServiceSettings

log = logging.getLogger(__name__)

AT_ONCE = 4
SILENT_SECONDS = 5.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Handler(BaseHTTPRequestHandler):
    """One request per connection (HTTP/1.0); a client that is silent is dropped."""

    timeout = SILENT_SECONDS
    server: MetricsServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
            return
        body = metrics.exposition(self.server.sets)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "tinkermesh"

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        log.debug(format, *arguments)


class MetricsServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """`start`, then `stop`. Raises InvalidInput when it cannot listen at `listen` (host:port, port 0 = any)."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, listen: str, sets: Sequence[MetricSet]) -> None:
        self.sets = tuple(sets)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        host, _, port = listen.rpartition(":")
        if not port.isdigit():
            raise InvalidInput(f"metrics_listen {listen!r} is not host:port")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host.strip("[]") or "0.0.0.0", int(port)), _Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput(f"metrics_listen: cannot listen on {listen}: {error}") from error
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> int:
        self._thread.start()
        return self.port

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(SILENT_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape was not answered", exc_info=True)


@contextmanager
def serving(service: str, settings: ServiceSettings, own: MetricSet) -> Iterator[None]:
    """The endpoint around the block, where the settings want one. Raises InvalidInput."""
    if not settings.metrics_listen:
        yield
        return
    metrics.build_info.labels(service, metrics.release()).set(1)
    server = MetricsServer(settings.metrics_listen, (COMMON, own))
    port = server.start()
    write_port(settings.metrics_port_file, port)
    log.info("metrics at port %d", port)
    try:
        yield
    finally:
        server.stop()
