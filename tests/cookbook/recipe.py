"""One recipe of tinker-cookbook, unmodified, in the cookbook's own environment."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.cookbook_venv import PLACE

Metrics = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kitchen:
    """Where recipes run: a workspace, and the mesh the SDK's variables point at."""

    workspace: Path
    environment: dict[str, str]

    def cook(self, recipe: str, *arguments: str, log_path: Path, seconds: float = 1000.0) -> Metrics:
        """Runs ``python -m <recipe>``; answers the lines of its metrics.jsonl.

        Raises AssertionError with the end of its output when it fails or takes longer than `seconds`.
        """
        output = log_path.with_suffix(".output")
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [str(PLACE / "bin" / "python"), *_program(recipe), f"log_path={log_path}", *arguments]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.workspace, env=self._variables(), stdout=file, stderr=subprocess.STDOUT
            )
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
                code = -1
        if code != 0:
            raise AssertionError(f"{recipe} ended with {code}:\n{output.read_text(errors='replace')[-6000:]}")
        return read_metrics(log_path)

    def _variables(self) -> dict[str, str]:
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.workspace / ".hf")}
        calm = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**outside, **offline, **calm, **self.environment}


def read_metrics(log_path: Path) -> Metrics:
    file = log_path / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def series(metrics: Metrics, name: str) -> list[float]:
    """The values of one metric, in order of the steps that have it."""
    return [float(row[name]) for row in metrics if name in row]


def _program(recipe: str) -> list[str]:
    """A module of the cookbook's recipes, or a script of ours that only calls its library."""
    return [recipe] if recipe.endswith(".py") else ["-m", f"tinker_cookbook.recipes.{recipe}"]
