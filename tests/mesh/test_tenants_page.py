"""Every command of docs/tenants.md on a running mesh, by the real grpcurl and the real tinkermesh command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tinkermesh.v1 import tenants_pb2 as pb

from services.gateway.settings import Settings as GatewaySettings
from services.gateway.upstream import keys
from services.scheduler.settings import Settings
from services.scheduler.tenancy import book
from tests.doubles.grpcurl import documented, run
from tests.doubles.mesh import MeshProcesses

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tenants.md").read_text()
COMMANDS = [command for block in documented(PAGE) for command in block.commands]


@pytest.fixture
def replaced(plain_mesh: MeshProcesses) -> Iterator[dict[str, str]]:
    """A key of its own for each command: some end it."""
    address = plain_mesh.scheduler
    made = run(f"grpcurl -plaintext {address} tinkermesh.v1.Tenants/CreateKey", {})
    key = json.loads(made.stdout)["key"]
    yield {"127.0.0.1:7001": address, "KEY_ID": key["key_id"], "TENANT_ID": key["tenant_id"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_works(command: str, replaced: dict[str, str], plain_mesh: MeshProcesses) -> None:
    assert command.startswith(("grpcurl ", "tinkermesh ")), command
    if command.startswith("tinkermesh "):
        command += f" --state-dir {plain_mesh.settings.state_dir}"
    done = run(command, replaced)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_page_documents_every_call_but_the_gateways_own() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Tenants"].methods} - {"ResolveKey"}
    assert {name for name in calls if f"tinkermesh.v1.Tenants/{name}" not in PAGE} == set()


def test_the_page_says_the_real_defaults_SEC_10() -> None:
    quotas = Settings(store_root="", pepper_file="").quotas
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert rows["sessions"] == f"{quotas.sessions:,}" and rows["models"] == f"{quotas.models:,}"
    assert rows["samples"] == f"{quotas.samples:,}" and rows["open_futures"] == f"{quotas.open_futures:,}"
    for name in ("queued_bytes", "result_bytes", "sequence_bytes"):
        assert rows[name] == f"{getattr(quotas, name) >> 30} GiB"
    assert rows["tokens_per_minute"] == rows["requests_per_second"] == "none"
    assert (quotas.tokens_per_minute, quotas.requests_per_second) == (0, 0)
    assert rows["job_tasks"] == f"{quotas.job_tasks:,}"


def test_the_page_says_the_real_bounds() -> None:
    assert "within **three seconds**" in PAGE
    assert book.REFRESH_SECONDS + keys.FRESH_SECONDS <= 3.0
    assert keys.OUTAGE_SECONDS == 300.0 and "up to five minutes" in PAGE
    gateway = GatewaySettings(key_file="", pepper_file="")
    assert not gateway.jwt_auth and gateway.jwt_lifetime_seconds == 600
    assert gateway.audit_file_bytes == 64 << 20 and gateway.max_polls_per_tenant == 8192
