"""Which benchmarks there are, in the order in which they run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.figure import Figure, parse

HERE = Path(__file__).parent
SCRIPT_SECONDS = 1800.0

# Modules with ``run(quick: bool) -> list[Figure]``; imported only when they run.
MODULES = (
    "idle",
    "memory",
    "latency",
    "throughput",
    "durability",
    "durable_points",
    "paging",
    "resume",
    "wakeup",
    "burst",
    "jobs",
    "router",
    "prefill_decode",
    "cold_adapter",
    "decode",
    "catalog",
    "fair_share",
    "mesh_packing",
)

Run = Callable[[bool], list[Figure]]


def benchmarks() -> dict[str, Run]:
    """By name. A trainer benchmark runs in a process of its own: torch's threads and memory go with it."""
    found: dict[str, Run] = {name: _module(name) for name in MODULES}
    found |= {path.stem: _script(path.stem) for path in sorted(HERE.glob("trainer_*.py"))}
    return found


def _module(name: str) -> Run:
    def run(quick: bool) -> list[Figure]:
        figures: list[Figure] = import_module(f"benchmarks.{name}").run(quick)
        return figures

    return run


def _script(name: str) -> Run:
    def run(quick: bool) -> list[Figure]:
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SCRIPT_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"benchmarks.{name} ended with exit code {done.returncode}; its cause is above")
        return parse(done.stdout)

    return run
