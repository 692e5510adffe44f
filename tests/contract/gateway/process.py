"""The gateway as its own process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.common.settings import to_environment
from services.gateway.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 30.0


@dataclass
class GatewayProcess:
    process: asyncio.subprocess.Process
    port: int
    log: Path

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "protos")])
    return {**os.environ, "PYTHONPATH": path, "NO_PROXY": "127.0.0.1", **more}


@asynccontextmanager
async def gateway_process(
    settings: Settings, directory: Path, *, pass_fds: tuple[int, ...] = (), **more: str
) -> AsyncIterator[GatewayProcess]:
    """Started when it serves (its port file is there), killed at the end if it still runs."""
    port_file, log = Path(settings.port_file), directory / f"{Path(settings.port_file).name}.log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.gateway",
            env=environment(**to_environment(settings, "gateway"), **more),
            cwd=ROOT,
            stdout=sink,
            stderr=sink,
            pass_fds=pass_fds,
        )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not port_file.exists():
                if process.returncode is not None:
                    raise RuntimeError(f"gateway ended with {process.returncode}: {log.read_text()}")
                await asyncio.sleep(0.02)
        yield GatewayProcess(process, int(port_file.read_text()), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
