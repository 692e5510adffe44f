"""The measuring client as seen by a benchmark: a child process that does what it is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

STOP_SECONDS = 15.0


class ClientFailed(RuntimeError):
    """The client could not do it; its own traceback is on stderr."""


class ClientProcess:
    def __init__(self, base_url: str, keys: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.client", base_url, *keys]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def do(self, name: str, **arguments: Any) -> Any:
        """Runs one command of benchmarks.client.driver. Raises ClientFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode({"do": name, "with": arguments}) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ClientFailed(f"{name}: the client ended with exit code {self._process.wait(STOP_SECONDS)}")
        answer = msgspec.json.decode(line)
        if "error" in answer:
            raise ClientFailed(answer["error"])
        return answer["result"]

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
