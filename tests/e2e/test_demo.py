"""Both demos against real engines, on the tiny model so that it takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.scenario import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def run_demo(mesh: RealMeshProcesses, name: str, *options: str) -> str:
    """What the script wrote; fails with it when the script does."""
    model = mesh.settings.model_name
    environment = {
        **os.environ,
        **mesh.environment,
        "TINKERMESH_DEMO_MODEL": model,
        "TINKERMESH_DEMO_TOKENIZER": model,
        "TINKERMESH_DEMO_ADMIN": mesh.scheduler,
        "TINKERMESH_DEMO_STATE": str(mesh.settings.state_dir),
    }
    command = [sys.executable, str(ROOT / "demo" / name), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_demo_halves_the_probe_loss_changes_the_sample_and_draws_the_curve(
    real_mesh: RealMeshProcesses, tmp_path: Path
) -> None:
    """The script itself exits non-zero unless the loss halved and the sample changed."""
    options = ("--steps", "30", "--learning-rate", "1e-2", "--rank", "16", "--out", str(tmp_path))
    shown = run_demo(real_mesh, "train.py", *options)
    assert "where the time went" in shown
    assert "before training" in shown and "after training" in shown
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_two_tenants_demo_shares_passes(real_mesh: RealMeshProcesses) -> None:
    """The script itself exits non-zero unless passes were shared and both losses fell."""
    shown = run_demo(real_mesh, "two_tenants.py", "--steps", "4")
    assert "passes held datums of both tenants" in shown
