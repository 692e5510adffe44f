"""Every command of docs/jobs.md against a running mesh, its answers compared with the page; the page's own figures."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.common.errors import BY_CODE
from services.gateway.settings import Settings as GatewaySettings
from services.gateway.wire.job_bodies import JobTask
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.records import Result
from services.scheduler.settings import Settings
from tests.doubles.grpcurl import Documented, documented, run
from tests.doubles.job_client import JobClient
from tests.doubles.mesh import MeshProcesses
from tests.mesh.test_grpcurl import absent

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "jobs.md").read_text()
BLOCKS = list(documented(PAGE))
SCHEDULER = Settings(store_root="", pepper_file="")


@pytest.fixture(scope="module")
def job(mesh: MeshProcesses) -> str:
    """The page's first job, at its end."""
    (command,) = BLOCKS[0].commands
    body = json.loads(re.search(r"-d '(.*)'", command)[1])  # type: ignore[index]

    async def made() -> str:
        client = JobClient(mesh.base_url, mesh.api_key)
        job_id = await client.create(body)
        await client.ended(job_id)
        await client.close()
        return job_id

    return asyncio.run(made())


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_documented_command_answers_as_the_page_shows_JOB_17(
    block: Documented, mesh: MeshProcesses, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in mesh.environment.items():
        monkeypatch.setenv(name, value)
    (command,) = block.commands
    done = run(command, {"JOB": job})
    assert done.returncode == 0 and done.stdout, f"{command}\n{done.stdout}{done.stderr}"
    if block.kind == "json":
        assert list(absent(bare(json.loads(block.output)), bare(json.loads(done.stdout)))) == [], done.stdout
    if "/events" in command:
        assert done.stdout.startswith("event: job\ndata: {") and '"state":"done"' in done.stdout


def bare(value: Any) -> Any:
    """Without its texts: models, ids and times are the page's own."""
    if isinstance(value, dict):
        return {name: bare(one) for name, one in value.items()}
    if isinstance(value, list):
        return [bare(one) for one in value]
    return "" if isinstance(value, str) else value


def test_a_missing_field_would_be_seen() -> None:
    """Negative control of the comparison."""
    assert list(absent(bare({"a": [{"b": "x", "c": 1}]}), bare({"a": [{"b": "y"}]}))) == [".a[].c"]


def test_the_page_says_the_real_bounds_JOB_17() -> None:
    assert f"at most {SCHEDULER.job_tasks:,} tasks" in PAGE and JobLimits().tasks_per_job == SCHEDULER.job_tasks
    assert f"{SCHEDULER.quota_job_tasks:,} open tasks per pool" in PAGE
    assert SCHEDULER.job_running_tasks == JobLimits().running_per_pool == 16 and "Sixteen tasks of a pool" in PAGE
    assert f"({SCHEDULER.job_retention_seconds / 86_400:.0f} days)" in PAGE
    assert SCHEDULER.sampler_wait_seconds == 300.0 and "no sampler for five minutes" in PAGE
    gateway = GatewaySettings(key_file="", pepper_file="")
    assert f"default 1, at most {gateway.max_samples}" in PAGE and JobLimits().samples_per_task == gateway.max_samples
    assert f"a body above {gateway.max_body_bytes >> 20} MiB" in PAGE


def test_the_page_names_every_field_JOB_17() -> None:
    cells = set(re.findall(r"`(\w+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
    assert {field.name for field in msgspec.structs.fields(JobTask)} - cells == set()
    own = {field.name for field in msgspec.structs.fields(Result)} - {"task_id", "index", "samples"}
    assert own - cells == set()


def test_every_error_code_of_the_page_is_real_JOB_17() -> None:
    rows = re.findall(r"^\| (\d{3}) `(\w+)` \|", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for status, code in rows:
        assert BY_CODE[code].http_status == int(status), code


def test_the_page_has_what_a_reader_must_know_JOB_17() -> None:
    for words in (
        "**Inherited unless given:**", "**Never inherited:** `max_tokens`", "**Check it by `usage.prompt_tokens`**",
        "**Cancel, then continue.**", "## Errors", "**Adapters under prefill and decode.**", "## What it costs",
    ):  # fmt: skip
        assert words in PAGE
