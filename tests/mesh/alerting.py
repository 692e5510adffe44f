"""A mesh and a Prometheus in a hurry (tests/doubles/prometheus.py), and what its alerts say of a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.eventually import until
from tests.doubles.mesh import MeshProcesses
from tests.doubles.prometheus import Prometheus, hurried, prometheus

RULES: dict[str, Any] = yaml.safe_load(
    (Path(__file__).resolve().parents[2] / "charts" / "tinkermesh" / "files" / "alerts.yaml").read_text()
)
SEEN_SECONDS = 90.0
FAULT_SECONDS = 120.0


@contextmanager
def watched(mesh: MeshProcesses, directory: Path) -> Iterator[Prometheus]:
    """It has heard of every process and every pool."""
    with prometheus(directory, mesh.settings.metrics_targets, hurried(RULES)) as made:
        until(lambda: made.scraped() == len(mesh.mesh.addresses.metrics), SEEN_SECONDS)
        until(lambda: made.query("tinkermesh_pool_units_total"), SEEN_SECONDS)
        yield made


def silent(server: Prometheus, *alerts: str) -> None:
    """Before the fault: what an earlier one has left is over soon."""
    until(lambda: not set(alerts) & server.firing(), FAULT_SECONDS)


def seen(server: Prometheus, *alerts: str) -> None:
    """Each is on at some time from now on, not all at once."""
    missing = set(alerts)

    def all_were() -> bool:
        missing.difference_update(server.firing())
        return not missing

    try:
        until(all_were, FAULT_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"never on: {', '.join(sorted(missing))}") from error
