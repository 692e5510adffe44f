"""Meshes of real processes with doubled engines; each takes about three seconds to come up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.mesh import MeshProcesses


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """Two gateways behind one socket, two schedulers."""
    with MeshProcesses(tmp_path_factory.mktemp("mesh"), gateways=2, schedulers=2) as running:
        yield running


@pytest.fixture
def fresh_mesh(tmp_path: Path) -> Iterator[MeshProcesses]:
    """The same, for a test that kills its parts."""
    with MeshProcesses(tmp_path / "mesh", gateways=2, schedulers=2) as running:
        yield running
