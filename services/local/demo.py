"""`tinkermesh demo`: a mesh of its own, and a demo script that sees nothing but the SDK's variables."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

from services.common.errors import MissingResource
from services.local.mesh import LocalMesh

STOP_SECONDS = 10.0
DEMO_DIRECTORY = Path(__file__).resolve().parents[2] / "demo"


def script(name: str) -> Path:
    """Raises MissingResource outside a checkout."""
    path = DEMO_DIRECTORY / name
    if not path.is_file():
        raise MissingResource(f"demo/{name} is not here: the demo runs from a checkout of the repository")
    return path


async def run_script(mesh: LocalMesh, path: Path, arguments: Sequence[str]) -> int:
    """Runs the demo against `mesh`; answers its exit code. Cancelled, it ends the script first."""
    environment = {
        **os.environ,
        **mesh.client_environment,
        "TINKER_TELEMETRY": "0",
        "TINKERMESH_DEMO_MODEL": mesh.settings.model_name,
        "TINKERMESH_DEMO_TOKENIZER": str(mesh.settings.model),
        "TINKERMESH_DEMO_ADMIN": mesh.addresses.schedulers[0],
        "TINKERMESH_DEMO_STATE": str(mesh.settings.state_dir),
        "NO_PROXY": ",".join(filter(None, ["127.0.0.1,localhost", os.environ.get("NO_PROXY", "")])),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, str(path), *arguments, env=environment)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
