"""One supervised process: start, readiness, end, and the last lines it wrote."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import deque
from enum import StrEnum

from services.common.errors import Unavailable
from services.local.readiness import is_ready
from services.local.spec import ChildSpec

POLL_SECONDS = 0.1
KILL_SECONDS = 5.0


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPED = "stopped"
    FAILED = "failed"


class Child:
    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.restarts = 0
        self.process: Process | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    async def start(self) -> None:
        self.state = State.STARTING
        if self.spec.port_file is not None:
            self.spec.port_file.unlink(missing_ok=True)
        command = (sys.executable, "-m", "services.local.leash", str(os.getpid()), *self.spec.command)
        with self.spec.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.spec.environment},
                pass_fds=self.spec.inherit,
                start_new_session=True,  # Ctrl-C is the supervisor's to order
            )

    async def wait_ready(self) -> None:
        """Raises Unavailable when the process ends first or takes too long."""
        process = self._running()
        try:
            async with asyncio.timeout(self.spec.ready_seconds):
                while not await is_ready(self.spec):
                    if process.returncode is not None:
                        raise Unavailable(f"{self.spec.name} ended with {describe_exit(process.returncode)}")
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise Unavailable(f"{self.spec.name} was not ready after {self.spec.ready_seconds:.0f} s") from error
        self.state = State.READY

    async def wait_ended(self) -> int:
        return await self._running().wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL to the whole process group when that does not end it in time.

        Raises Unavailable when not even that does.
        """
        if self.pid is None:
            return
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self.kill()
            await self._wait_killed(process)
        self.state = State.STOPPED

    async def _wait_killed(self, process: Process) -> None:
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await process.wait()
        except TimeoutError as error:
            raise Unavailable(f"{self.spec.name} (pid {process.pid}) did not end, not even by SIGKILL") from error

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """The child is the leader of its own process group."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and the loop has not seen it yet
                os.killpg(self.pid, number)

    def last_lines(self, count: int = 15) -> list[str]:
        try:
            with self.spec.log_file.open(errors="replace") as file:
                return [line.rstrip() for line in deque(file, count)]
        except FileNotFoundError:
            return []

    def _running(self) -> Process:
        if self.process is None:
            raise Unavailable(f"{self.spec.name} was never started")
        return self.process


def describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
