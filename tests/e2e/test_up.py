"""`tinkermesh up` as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from services.local.mesh import get_json

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
FREE_PORTS = [f"--{name}=0" for name in ("port", "redis-port", "scheduler-port", "trainer-port", "sampler-port")]
TINKERMESH = Path(sys.executable).parent / "tinkermesh"


@contextmanager
def up(model: Path, state_dir: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(TINKERMESH), "up", "--model", str(model), "--state-dir", str(state_dir), "--threads=1", *FREE_PORTS]
    environment = {**os.environ, "COLUMNS": "120"}
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def wait_for(pattern: str, output: Path, process: subprocess.Popen[bytes], seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while (found := re.search(pattern, output.read_text(errors="replace"))) is None:
        assert process.poll() is None and time.monotonic() < deadline, output.read_text(errors="replace")
        time.sleep(0.1)
    return found[1]


def test_up_serves_until_ctrl_c_and_leaves_nothing_behind(tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with up(tiny_model, tmp_path / "state", output) as process:
        url = wait_for(r"export TINKER_BASE_URL=(\S+)", output, process, 240)
        key = wait_for(r"export TINKER_API_KEY=(\S+)", output, process, 5)
        models = get_json(f"{url}/api/v1/get_server_capabilities", key)["supported_models"]
        assert models[0]["model_name"] == str(tiny_model)
        assert models[0]["trainable"] and models[0]["sampleable"]
        for name in ("redis", "scheduler-0", "gateway-0", "trainer", "sampler"):
            assert re.search(rf"{name}\b.*\bready\b", output.read_text())
            assert re.search(rf"^{name} is ready after \d+ s$", output.read_text(), re.MULTILINE)  # no terminal here
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 5
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert not [child for child in children if child.is_running()]


def test_up_ends_with_the_cause_when_the_trainer_cannot_start(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((tiny_model / "config.json").read_text())  # no weights beside it
    output = tmp_path / "output"
    with up(broken, tmp_path / "state", output) as process:
        assert process.wait(120) not in (0, None)
    text = output.read_text(errors="replace")
    assert re.search(r"(trainer|sampler) ended with exit code", text)
    assert "safetensors" in text
