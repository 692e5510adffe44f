"""kill -9 of the real trainer: how long until 1 model, and 8, go on behind a log of 16 steps."""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import RunningMesh, real
from tools.make_tiny_qwen3 import VOCABULARY, build

NAME = "tinkermesh/tiny"
STEPS, TOKENS, MODELS, NEVER = 16, 64, 8, 1_000_000
LIKE: dict[str, Any] = {"base_model": NAME, "vocabulary": VOCABULARY, "tokens": TOKENS}
DURABLE_SECONDS = 30.0


def run(quick: bool) -> list[Figure]:
    repetitions = 1 if quick else 2
    with tempfile.TemporaryDirectory(prefix="tinkermesh-tiny-") as directory:
        model = build(Path(directory) / "tiny-qwen3")
        with real(model, NAME, sampler=False) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
            figures = []
            for models, more in ((1, 1), (MODELS, MODELS - 1)):
                client.do("open", **LIKE, models=more)
                taken = [_resumed(mesh, client, models) for _ in range(repetitions)]
                figures += _figures(models, taken)
    return figures


def _resumed(mesh: RunningMesh, client: ClientProcess, models: int) -> tuple[float, float, float]:
    """Seconds from the kill to every model's next step: all, until the new trainer serves, from there."""
    _cover(mesh, client, models)
    client.do("steps", count=STEPS, together=True)
    wall, started = time.time(), time.monotonic()
    mesh.kill("trainer")
    client.do("steps", count=1, together=True)
    whole, serving = time.monotonic() - started, _serving_since(mesh) - wall
    return whole, serving, whole - serving


def _cover(mesh: RunningMesh, client: ClientProcess, models: int) -> None:
    """A step that a durable point covers: what comes behind it is the whole log."""
    points = mesh.recovery().durables_total
    mesh.durable_every(1)
    client.do("steps", count=1, together=True)
    deadline = time.monotonic() + DURABLE_SECONDS
    while mesh.recovery().durables_total < points + models:
        if time.monotonic() > deadline:
            raise TimeoutError("no durable point was made")
        time.sleep(0.02)
    mesh.durable_every(NEVER)


def _serving_since(mesh: RunningMesh) -> float:
    """Unix seconds at which the latest trainer said that it serves."""
    lines = [line for line in mesh.log_fields("trainer") if " serves at " in str(line["message"])]
    return datetime.fromisoformat(lines[-1]["time"]).timestamp()


def _figures(models: int, taken: list[tuple[float, float, float]]) -> list[Figure]:
    of = f"{models} model{'s' if models > 1 else ''}"
    note = f"tiny model, {STEPS} logged steps of {TOKENS} tokens each"
    names = (f"{of}: kill to the next step's result", f"{of}: until a new trainer serves", f"{of}: seats, replay, step")
    return [
        Figure(name, list(samples), "s", note=note)
        for name, samples in zip(names, zip(*taken, strict=True), strict=True)
    ]
