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


@pytest.fixture(scope="session")
def plain_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """One of each, without traces, short polls; every process lists in its log what it imports.

    Shared by modules that look from outside: leave no fault behind.
    """
    variables = {"PYTHONPROFILEIMPORTTIME": "1", "TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "1"}
    options = ["--slots", "32"]
    with MeshProcesses(tmp_path_factory.mktemp("plain"), variables=variables, trainer_options=options) as running:
        yield running
