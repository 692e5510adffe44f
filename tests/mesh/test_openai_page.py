"""docs/openai.md: its programs run as they stand there, its figures and fields are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from services.common.errors import BY_CODE
from services.gateway.openai.bodies import FIELDS
from services.gateway.openai.checks import DEFAULT_TOKENS, MAX_ECHOED
from services.gateway.openai.errors import INTERNAL, error_object
from services.gateway.settings import Limits, Settings
from services.scheduler.settings import Settings as SchedulerSettings
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "openai.md").read_text()
GATEWAY = Settings(key_file="", pepper_file="")
SCHEDULER = SchedulerSettings(store_root="", pepper_file="")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def cells(heading: str, column: int = 0) -> list[str]:
    """Of the one table under a heading, the names in backquotes."""
    section = PAGE.split(heading, 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[column + 1])]


def run(mesh: MeshProcesses, *command: str) -> str:
    environment = {
        **os.environ,
        **mesh.environment,
        "OPENAI_BASE_URL": f"{mesh.base_url}/oai/api/v1",
        "OPENAI_API_KEY": mesh.api_key,
        "MODEL": BASE_MODEL,
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_runs(mesh: MeshProcesses) -> None:
    (program,) = blocks("python")
    said = run(mesh, sys.executable, "-c", program)
    assert said.count("CompletionUsage(") == 2 and "completion_tokens=" in said


def test_the_requests_by_hand_are_answered(mesh: MeshProcesses) -> None:
    settings, commands = blocks("bash")
    assert re.findall(r"^export (\w+)=", settings, re.MULTILINE) == ["OPENAI_BASE_URL", "OPENAI_API_KEY", "MODEL"]
    said = run(mesh, "bash", "-ec", commands)
    assert f'"id":"{BASE_MODEL}"' in said and '"object":"chat.completion"' in said
    assert '"prompt_token_ids":[1,2,3]' in said and said.rstrip().endswith("data: [DONE]")


def test_every_field_that_is_read_is_on_the_page_and_no_other() -> None:
    named = {name.split(".")[0] for name in cells("## Fields")}
    assert named == FIELDS


def test_every_error_on_the_page_is_one_of_the_code() -> None:
    told = {error_object(kind("x"))["code"] for kind in BY_CODE.values()} | {INTERNAL["code"]}
    assert set(cells("## Errors", column=1)) <= told
    (example,) = blocks("json")
    assert set(msgspec.json.decode(example)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "said",
    [
        f"1 to {GATEWAY.max_samples} sequences; prompts times `n` at most {GATEWAY.max_samples}",
        f"Left out: {DEFAULT_TOKENS} for a completion",
        f"up to {Limits().max_stops} texts",
        f"at most {MAX_ECHOED:,} then",
        f"0 to {GATEWAY.max_topk_logprobs} alternatives",
        f"every {GATEWAY.completion_heartbeat_seconds:g} s",
        f"a body above {GATEWAY.max_small_body_bytes >> 20} MiB",
        f"At most {GATEWAY.max_completions_per_tenant} requests of a tenant",
        f"{GATEWAY.max_completions:,} of all",
        f"{GATEWAY.max_completion_values:,} tokens and alternatives",
        f"waits at most {SCHEDULER.completion_wait_seconds:g} s for room",
    ],
)
def test_its_figures_are_those_of_the_code(said: str) -> None:
    assert said in " ".join(PAGE.split())
