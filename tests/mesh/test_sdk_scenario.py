"""Unmodified SDKs run the main path through real gateways and schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.journal import datum_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import sdk_python, start_scenario
from tests.doubles.scenario_checks import check_scenario

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(240)]


def test_sdk_0_38_runs_the_main_path_API_01(mesh: MeshProcesses, tmp_path: Path) -> None:
    report = start_scenario(tmp_path, mesh.environment, BASE_MODEL).report()
    check_scenario(report, vocab=512, tolerance=0.0)
    assert set(datum_counts(mesh.journal()).values()) == {1}


def test_sdk_0_26_runs_the_main_path_API_01(mesh: MeshProcesses, tmp_path: Path) -> None:
    python = sdk_python("0.26.2")
    if not python.exists():
        pytest.skip("no environment of SDK 0.26.2: run `make sdk-venvs`")
    report = start_scenario(tmp_path, mesh.environment, BASE_MODEL, python=python).report()
    assert report["sdk"] == "0.26.2"
    check_scenario(report, vocab=512, tolerance=0.0)
