"""Without the standard variables nothing of tracing is even imported, and logs are whole JSON lines all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh import main_path

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

SERVICES = ("gateway-0", "scheduler-0", "trainer", "sampler")
IMPORTS = "import time:"
# redis-py imports the metrics half of the SDK by itself, whether metrics are wanted or not.
OF_TRACING = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "opentelemetry.instrumentation")


@pytest.fixture(scope="module")
def request_ids(plain_mesh: MeshProcesses) -> list[str]:
    """A model's creation, and a pass with the client's traceparent."""
    return asyncio.run(_requests(plain_mesh))


async def _requests(plain_mesh: MeshProcesses) -> list[str]:
    client = WireClient([plain_mesh.base_url], plain_mesh.api_key)
    body = main_path.create_model(await client.session())
    created = (await main_path.accepted(client, "/create_model", body))["request_id"]
    model = (await client.future(created))["model_id"]
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    trained = await client.post("/forward_backward", batch(model, 1, seed=1), traceparent=traceparent)
    await client.future(trained.json()["request_id"])
    await client.close()
    return [created, trained.json()["request_id"]]


def log_lines(mesh: MeshProcesses, service: str) -> Iterator[str]:
    return (line for line in mesh.logs(service).splitlines() if not line.startswith(IMPORTS))


@pytest.mark.parametrize("service", SERVICES)
def test_no_exporter_is_imported(plain_mesh: MeshProcesses, request_ids: list[str], service: str) -> None:
    imported = {line.rsplit("|", 1)[-1].strip() for line in plain_mesh.logs(service).splitlines() if IMPORTS in line}
    assert "services.common.telemetry" in imported
    assert not {name for name in imported if name.startswith(OF_TRACING)}


@pytest.mark.parametrize("service", SERVICES)
def test_every_log_line_is_json(plain_mesh: MeshProcesses, request_ids: list[str], service: str) -> None:
    found: list[Json] = [json.loads(line) for line in log_lines(plain_mesh, service)]
    assert found or service == "sampler"
    for line in found:
        assert {"time", "level", "service", "logger", "message"} <= set(line)
        assert line["service"] == service.split("-")[0]
        assert "trace_id" not in line


def test_lines_about_a_request_carry_its_ids(plain_mesh: MeshProcesses, request_ids: list[str]) -> None:
    for service in ("gateway-0", "scheduler-0"):
        lines = [json.loads(line) for line in log_lines(plain_mesh, service)]
        for request_id in request_ids:
            mine = [line for line in lines if line.get("request_id") == request_id]
            assert mine, f"{service} says nothing of {request_id}"
            for line in mine:
                assert line["model_id"] and line["tenant_id"]
