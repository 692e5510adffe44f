"""Unmodified SDKs, from the oldest to the newest, run the main path through real gateways and schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.journal import datum_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario
from tests.doubles.sdk_matrix import VERSIONS, interpreter

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(240)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_sdk_of_the_matrix_runs_the_main_path_API_01(mesh: MeshProcesses, tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    report = start_scenario(tmp_path, mesh.environment, BASE_MODEL, python=python).report()
    assert report["sdk"] == version
    check_scenario(report, vocab=512, tolerance=0.0)
    assert set(datum_counts(mesh.journal()).values()) == {1}
