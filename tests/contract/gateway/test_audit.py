"""One audit line per admission decision, none with a credential in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.common import audit, logs
from services.common.errors import Busy
from tests.contract.gateway.conftest import OTHER_KEY, Client, Tenants
from tests.contract.gateway.credentials import with_credential
from tests.contract.gateway.fake_scheduler import FakeScheduler


def decisions(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    return [record.fields for record in caplog.records if record.name == "tinkermesh.audit"]  # type: ignore[attr-defined]


async def test_an_audit_line_per_admission_decision(
    client: Client, other: Client, model: str, tenants: Tenants, scheduler: FakeScheduler, caplog: Any
) -> None:
    step = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
    accepted = await client.post("optim_step", step)
    await client.post("optim_step", {**step, "seq_id": 2, "adam_params": {"learning_rate": "x"}})
    await other.post("optim_step", {**step, "seq_id": 3})
    await client.post("optim_step", b"{")
    scheduler.failures.append(Busy("quota open_futures: 1 of 1 are unsettled"))
    await client.post("optim_step", {**step, "seq_id": 4})
    await with_credential(client, "tml-SECRET-nobody").request("GET", "get_server_capabilities")
    lines = decisions(caplog)
    assert [line["decision"] for line in lines] == ["admitted", "admitted", "refused", "refused", "refused", "refused"]
    first, broken, foreign, unreadable, busy, unknown = lines
    assert first["tenant"] == tenants.first and first["key"].startswith("key-")
    assert first["op"] == "optim_step" and first["route"] == "POST /api/v1/optim_step"
    assert first["request_id"] == accepted.json()["request_id"]
    assert "fails in its turn" in broken["reason"]
    assert foreign["tenant"] == tenants.second and foreign["reason"].startswith("forbidden")
    assert unreadable["reason"] == "invalid_input"
    assert busy["reason"].startswith("busy: quota open_futures")
    assert unknown["reason"].startswith("unauthenticated") and "tenant" not in unknown


async def test_polls_and_reads_leave_no_audit_line(client: Client, model: str, caplog: Any) -> None:
    await client.post("retrieve_future", {"request_id": "double.0.0"})
    await client.post("get_info", {"model_id": model})
    await client.request("GET", "get_server_capabilities")
    await client.post("telemetry", {})
    assert decisions(caplog) == []


async def test_a_credential_where_an_id_belongs_is_not_audited_SEC_02(
    client: Client, scheduler: FakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.failures.append(Busy(f"tenant of {OTHER_KEY} " + "x" * 1000))
    await client.post("create_session", {"tags": [], "sdk_version": "0.38.0"})
    (line,) = decisions(caplog)
    assert "SECRET" not in line["reason"] and len(line["reason"]) <= 200


def test_audit_lines_go_to_a_bounded_file(tmp_path: Path) -> None:
    audit.write_to(tmp_path / "audit" / "lines", "gateway", 2_000)
    handler = audit.AUDIT.handlers[-1]
    try:
        with logs.bind(tenant_id="t"):
            for number in range(200):
                audit.AUDIT.info("admitted", extra={"fields": {"decision": "admitted", "op": f"op-{number}"}})
    finally:
        audit.AUDIT.removeHandler(handler)
        handler.close()
    found = sorted((tmp_path / "audit").iterdir())
    assert len(found) == 1 + audit.FILES_KEPT
    assert all(file.stat().st_size <= 2_000 for file in found)
    last = msgspec.json.decode(found[0].read_text().splitlines()[-1])
    assert last["op"] == "op-199" and last["logger"] == "tinkermesh.audit" and last["time"]
