"""The real trainer service as a child process, and how a trainer's port becomes known."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from services.common.settings import to_environment
from services.trainer.settings import Settings

WAIT_SECONDS = 60.0
REPOSITORY = Path(__file__).resolve().parents[3]


async def read_port(path: Path, alive: subprocess.Popen[bytes] | None = None, seconds: float = WAIT_SECONDS) -> int:
    deadline = time.monotonic() + seconds
    while not path.is_file():
        assert time.monotonic() < deadline, "the trainer did not serve in time"
        assert alive is None or alive.poll() is None, f"the trainer ended with {alive and alive.returncode}"
        await asyncio.sleep(0.02)
    return int(path.read_text())


class TrainerProcess:
    """``python -m services.trainer`` with these settings."""

    def __init__(self, settings: Settings, **environment: str) -> None:
        self.settings = settings
        Path(settings.port_file).unlink(missing_ok=True)
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'protos'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.trainer"],
            env={**variables, **to_environment(settings, "trainer"), **environment},
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
        )
        self._log: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self._log.extend(self.process.stderr)

    async def address(self, seconds: float = 90.0) -> str:
        return f"127.0.0.1:{await read_port(Path(self.settings.port_file), self.process, seconds)}"

    async def wait(self, seconds: float = WAIT_SECONDS) -> int:
        return await asyncio.to_thread(self.process.wait, seconds)

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_SECONDS)

    def log(self) -> str:
        self._reader.join(2.0)
        return b"".join(self._log).decode()
