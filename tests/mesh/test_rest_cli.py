"""The SDK's own command line, unmodified, against the mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
SAVES = """
import sys, tinker
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model=sys.argv[1], rank=8).result()
print(training.get_info().model_id, training.save_state("cli").result().path)
service.close("success").result()
"""
Cli = Callable[..., Any]


@pytest.fixture
def cli(mesh: MeshProcesses) -> Cli:
    tinker = Path(sys.executable).with_name("tinker")

    def run(*arguments: str) -> Any:
        command = [str(tinker), "--format", "json", *arguments]
        environment = {**os.environ, **mesh.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout

    return run


@pytest.fixture
def saved(mesh: MeshProcesses) -> tuple[str, str]:
    """(run id, path) of a checkpoint whose session has ended."""
    command = [sys.executable, "-c", SAVES, BASE_MODEL]
    environment = {**os.environ, **mesh.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    run_id, path = done.stdout.split()
    return run_id, path


def test_a_checkpoint_is_listed_shown_downloaded_and_deleted(cli: Cli, saved: tuple[str, str], tmp_path: Path) -> None:
    run_id, path = saved
    assert cli("run", "info", run_id)["last_checkpoint"]["tinker_path"] == path
    cli("checkpoint", "set-ttl", path, "--ttl", "7200")
    listed = cli("checkpoint", "list", "--run-id", run_id)["checkpoints"]
    assert [(one["tinker_path"], one["expires_at"] is not None) for one in listed] == [(path, True)]
    cli("checkpoint", "download", path, "-o", str(tmp_path))  # loads it into a new model and exports that
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["state.json"]
    cli("checkpoint", "delete", "-y", path)
    assert cli("checkpoint", "list", "--run-id", run_id)["checkpoints"] == []
