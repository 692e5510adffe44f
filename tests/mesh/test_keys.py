"""Keys and quotas of a running mesh, from the command line to what clients are answered."""

from __future__ import annotations

import asyncio
import re

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.local import cli
from tests.doubles.eventually import SOON, eventually
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.test_tenants import new_model

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
runner = CliRunner()


def command(mesh: MeshProcesses, *arguments: str) -> Result:
    done = runner.invoke(cli.app, [*arguments, "--state-dir", str(mesh.settings.state_dir)])
    assert done.exit_code == 0, done.output + done.stderr
    return done


def created(done: Result) -> tuple[str, str, str]:
    found = re.search(r"key +(tml-\S+)\s+tenant +(\S+)\s+id +(\S+)", done.output)
    assert found is not None, done.output
    return found[1], found[3], found[2]


async def test_a_key_made_while_the_mesh_runs_lives_and_dies_by_the_command_line_SEC_03(mesh: MeshProcesses) -> None:
    secret, key_id, tenant = created(command(mesh, "keys", "create", "--label", "lab"))
    client = WireClient([mesh.base_url], secret)
    _, model = await new_model(client)
    newer, _, same = created(command(mesh, "keys", "rotate", key_id, "--grace", "1"))
    assert same == tenant
    heir = WireClient([mesh.base_url], newer)
    mesh.inject("trainer", [{"kind": "pass", "action": "hold_before", "times": 0}])
    sent = (await client.post("/forward_backward", batch(model, 1, seed=1))).json()["request_id"]
    command(mesh, "keys", "revoke", key_id)

    async def refused() -> bool:
        return (await client.post("/get_info", {"model_id": model, "type": "get_info"})).status_code == 401

    await eventually(refused, SOON)  # that three seconds do, its two constants say: test_tenants_page.py
    mesh.inject("trainer", [])
    assert "error" not in await heir.future(sent), "accepted work goes on; the tenant's other key reads its result"
    assert key_id in command(mesh, "keys", "list").output
    for one in (client, heir):
        await one.close()


async def test_quotas_set_by_the_command_line_refuse_soon_and_are_shown_SEC_10(mesh: MeshProcesses) -> None:
    secret, _, tenant = created(command(mesh, "keys", "create"))
    client = WireClient([mesh.base_url], secret)
    await new_model(client)
    shown = command(mesh, "tenants", "set", tenant, "--models", "1", "--weight", "2", "--name", "lab").output
    assert "weight  2" in shown and "(own)" in shown
    session = await client.session()
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tinkermesh/double", "lora_config": {"rank": 4}}
    async with asyncio.timeout(SOON):
        number = 0
        while (answer := await client.post("/create_model", {**body, "model_seq_id": number})).status_code != 429:
            number += 1
            await asyncio.sleep(0.1)
    detail = answer.json()["detail"]
    assert detail.startswith("quota models") and "unload" in detail and answer.headers["retry-after"] == "1"
    assert tenant in command(mesh, "tenants", "list").output
    command(mesh, "tenants", "set", tenant, "--reset", "models")
    await client.close()
