"""The unmodified SDK, told to compress its batches, against a gateway process and the fake scheduler."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import pytest

from services.gateway.settings import Settings
from tests.contract.gateway.conftest import KEY
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.process import ROOT, environment, gateway_process
from tests.contract.gateway.submitted import BASE_MODEL

pytest.importorskip("tinker", reason="the SDK is not installed")

SCRIPT = Path(__file__).with_name("sdk_tour.py")


@pytest.mark.timeout(120)
async def test_sdk_runs_its_main_path_unmodified_API_01(
    scheduler: FakeScheduler, settings: Settings, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(
        settings, listen="127.0.0.1:0", port_file=str(tmp_path / "port"), compress_requests=True
    )
    report = tmp_path / "report.json"
    async with gateway_process(settings, tmp_path) as gateway:
        sdk = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            BASE_MODEL,
            str(report),
            env=environment(TINKER_BASE_URL=gateway.base_url, TINKER_API_KEY=KEY, TINKER_TELEMETRY="1"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(sdk.communicate(), 90)
        assert sdk.returncode == 0, output.decode()
        log = gateway.log.read_text()
    assert "Traceback" not in log
    assert "SECRET" not in log
    seen = json.loads(report.read_text())
    assert seen["loss"] == 12.0
    assert seen["chunks"] == 1030
    assert seen["lengths"] == [5, 7]
    assert seen["optim"]["grad_norm"] == 1.5
    assert seen["samples"] == [[5, 6, 7], [15, 16, 17], [25, 26, 27]]
    assert seen["sequence_ids"] == 3
    assert seen["prompt_logprobs"] == [None, -1.0, -2.0]
    assert seen["state"].endswith("/weights/ck1")
    assert "needs target_tokens" in seen["failure"] and "user" in seen["category"].lower()
    assert seen["loaded"].endswith(":train:1")
    ops = [one.command.WhichOneof("body") for one in scheduler.submitted]
    assert ops.count("batch") == 5
