"""The program on the front page, as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_programs_five_steps_and_its_sample_run_API_01(mesh: MeshProcesses, tmp_path: Path) -> None:
    """In a directory that holds the tokenizer under the model's name, as a user's cache would."""
    shutil.copytree(build(tmp_path / "tiny"), tmp_path / BASE_MODEL)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, **mesh.environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    steps = re.findall(r"^(\d) -?\d+\.\d+$", done.stdout, re.MULTILINE)
    assert steps == list("01234"), done.stdout
