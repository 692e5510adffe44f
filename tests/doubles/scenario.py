"""Runs the SDK scenario in a process of its own, with the SDK version of its interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "e2e" / "sdk_scenario.py"
SCENARIO_SECONDS = 150.0


def sdk_python(version: str) -> Path:
    """The interpreter of `make sdk-venvs`; it need not exist."""
    return ROOT / ".venvs" / f"sdk-{version}" / "bin" / "python"


@dataclass(slots=True)
class ScenarioRun:
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def marks(self) -> list[str]:
        """Stages reached so far."""
        file = self.directory / "marks"
        return [line.split(" ", 1)[1] for line in file.read_text().splitlines()] if file.exists() else []

    def wait_mark(self, stage: str, seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while stage not in self.marks:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"scenario never reached {stage!r}:\n{self.output()[-6000:]}")
            time.sleep(0.02)

    def report(self, seconds: float = SCENARIO_SECONDS) -> dict[str, Any]:
        """Raises AssertionError with what the script wrote when it fails or takes too long."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise AssertionError(f"scenario took over {seconds} s:\n{self.output()[-6000:]}") from None
        if code != 0:
            raise AssertionError(f"scenario ended with {code}:\n{self.output()[-6000:]}")
        report: dict[str, Any] = json.loads((self.directory / "report.json").read_bytes())
        return report

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")


def start_scenario(
    directory: Path, environment: dict[str, str], base_model: str, *options: str, python: Path = Path(sys.executable)
) -> ScenarioRun:
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["--base-model", base_model, "--report", str(directory / "report.json")]
    arguments += ["--step-marks", str(directory / "marks"), *options]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            [str(python), str(SCRIPT), *arguments],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return ScenarioRun(process, directory)
