"""status, runs, checkpoints and tail of the tinkermesh command against a running mesh."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from typing import Any

import pytest
from click.testing import Result
from redis.asyncio import Redis
from typer.testing import CliRunner

from services.local import cli
from services.scheduler.store import keys
from tests.doubles.admin import timeline, trainers
from tests.doubles.eventually import SOON, eventually
from tests.doubles.fake_trainer import POOL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.main_path import adam, created, done, saved

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]
runner = CliRunner()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "TINKERMESH_SCHEDULER", "TINKERMESH_STATE"):
        monkeypatch.delenv(name, raising=False)


def command(mesh: MeshProcesses, *arguments: str, **options: Any) -> Result:
    return runner.invoke(cli.app, [*arguments, "--state-dir", str(mesh.settings.state_dir)], **options)


def parsed(result: Result) -> Any:
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(result.stdout)


async def trained(mesh: MeshProcesses, key: str = "") -> tuple[str, str]:
    """Run and checkpoint of a tenant."""
    client = WireClient([mesh.base_url], key or mesh.api_key)
    model = await created(client, await client.session())
    path = await saved(client, model, 1, "mine")
    await client.close()
    return model, path


async def test_status_names_every_part_and_its_state(mesh: MeshProcesses) -> None:
    model, _ = await trained(mesh)
    seen = parsed(command(mesh, "status", "--json"))
    assert [pool["facts"]["pool"] for pool in seen["pools"]] == ["double"]
    assert seen["pools"][0]["leader"].startswith("scheduler-")
    assert model in [one["model_id"] for one in seen["models"]]
    held = [slot for slot in seen["slots"] if slot["model_id"] == model]
    assert [slot["state"] for slot in held] == ["held"]
    assert [lease["leader"] for lease in seen["leases"]] == [seen["pools"][0]["leader"]]
    assert {one["replica"] for one in seen["replicas"]} == {"scheduler-0", "scheduler-1"}
    assert [one["base"] for one in seen["durable_points"] if one["model_id"] == model] == ["init"]
    text = command(mesh, "status").stdout
    assert "scheduler-0" in text and "scheduler-1" in text
    assert (
        model in text and "trainer-double" in text and "sampler-double" in text and seen["pools"][0]["leader"] in text
    )


async def test_a_gap_is_seen_in_status(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    await client.post("/optim_step", adam(model, 2))
    line = next(line for line in command(mesh, "status").stdout.splitlines() if model in line)
    assert "seq_id 1, which has not arrived" in line
    assert "error" not in await done(client, "/forward_backward", batch(model, 1, seed=1))
    await client.close()


async def test_runs_and_checkpoints_are_the_keys_tenants_own_SEC_04(
    mesh: MeshProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tenant's key lists nothing of them and deletes nothing; the owner's does."""
    model, path = await trained(mesh)
    mesh.add_key("tml-stranger")
    assert model in [run["training_run_id"] for run in parsed(command(mesh, "runs", "list", "--json"))["training_runs"]]
    monkeypatch.setenv("TINKER_API_KEY", "tml-stranger")
    assert parsed(command(mesh, "runs", "list", "--json"))["training_runs"] == []
    for refused in (command(mesh, "checkpoints", "delete", path, "--yes"), command(mesh, "runs", "show", model)):
        assert refused.exit_code == 1 and "another" in refused.stderr, refused.stderr
    monkeypatch.delenv("TINKER_API_KEY")
    assert [one["tinker_path"] for one in parsed(command(mesh, "runs", "show", path, "--json"))["checkpoints"]] == [
        path
    ]
    assert command(mesh, "checkpoints", "delete", path, "--yes").exit_code == 0
    listed = parsed(command(mesh, "checkpoints", "list", "--run", model, "--json"))
    assert listed["checkpoints"] == [] and listed["cursor"]["total_count"] == 0


async def test_a_checkpoint_is_deleted_only_after_a_yes(mesh: MeshProcesses) -> None:
    model, path = await trained(mesh)
    assert command(mesh, "checkpoints", "delete", path, input="n\n").exit_code == 1
    assert command(mesh, "checkpoints", "delete", f"{path}x/y").exit_code == 1
    assert path in command(mesh, "checkpoints", "list", "--run", model).stdout
    assert "deleted" in command(mesh, "checkpoints", "delete", path, input="y\n").stdout


async def test_tail_follows_a_request_until_it_is_settled(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    waiting = (await client.post("/optim_step", adam(model, 2))).json()["request_id"]
    once = command(mesh, "tail", waiting, "--no-follow")
    assert once.exit_code == 0 and "waiting for seq_id 1" in once.stdout and "settled" not in once.stdout
    assert "not settled" in (cut := command(mesh, "tail", waiting, "--for", "0")).stdout and cut.exit_code == 1
    seen: list[Result] = []
    follower = threading.Thread(target=lambda: seen.append(command(mesh, "tail", waiting)))
    follower.start()
    await client.post("/forward_backward", batch(model, 1, seed=1))
    await asyncio.to_thread(follower.join, 60)
    assert seen[0].exit_code == 0, seen[0].stderr
    events = [line.split()[4] for line in seen[0].stdout.splitlines() if line.startswith("20")]
    assert [event for event in events if event != "delivered"] == ["admitted", "issued", "executed", "settled"]
    await client.close()


async def test_tail_of_a_failed_request_says_why_and_ends_with_1(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    bad = (await client.post("/optim_step", adam(model, 1, learning_rate="high"))).json()["request_id"]
    told = command(mesh, "tail", bad)
    assert told.exit_code == 1
    assert "user error: request body" in told.stdout and "learning_rate" in told.stdout
    assert command(mesh, "tail", "nobody").exit_code == 1
    await client.close()


def test_a_mesh_is_named_by_its_addresses_alone(mesh: MeshProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a remote one is: no state directory."""
    monkeypatch.setenv("TINKERMESH_STATE", "/nonexistent")
    monkeypatch.setenv("TINKERMESH_SCHEDULER", mesh.scheduler)
    assert "trainer-double" in runner.invoke(cli.app, ["status"]).stdout
    monkeypatch.setenv("TINKER_BASE_URL", mesh.base_url)
    keyless = runner.invoke(cli.app, ["runs", "list"])
    assert keyless.exit_code == 1 and "TINKER_API_KEY" in keyless.stderr
    monkeypatch.setenv("TINKER_API_KEY", mesh.api_key)
    assert runner.invoke(cli.app, ["runs", "list"]).exit_code == 0
    monkeypatch.setenv("TINKER_API_KEY", "tml-wrong")
    assert "not known" in runner.invoke(cli.app, ["runs", "list"]).stderr


async def test_a_model_is_closed_only_after_a_yes_and_with_a_reason(mesh: MeshProcesses) -> None:
    """And its client is told the reason."""
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    close = ("models", "evict", model, "--close", "--reason", "left behind")
    assert "--reason: missing" in command(mesh, "models", "evict", model, "--close", "--yes").stderr
    assert "only with --close" in command(mesh, "models", "evict", model, "--reason", "x").stderr
    assert command(mesh, *close, input="n\n").exit_code == 1
    assert "error" not in await done(client, "/forward_backward", batch(model, 1, seed=1))
    assert f"unseated {model}" in command(mesh, "models", "evict", model).stdout
    assert "error" not in await done(client, "/optim_step", adam(model, 2)), "it comes back for its work"
    assert f"closed {model}" in command(mesh, *close, input="y\n").stdout
    refused = await client.post("/optim_step", adam(model, 3))
    assert refused.status_code == 400 and "left behind" in refused.text
    gone = command(mesh, "models", "evict", model)
    assert gone.exit_code == 1 and "closed" in gone.stderr
    await client.close()


async def test_a_drained_trainer_gets_nothing_until_it_is_resumed(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    assert "drained trainer-double of pool double" in command(mesh, "trainers", "drain", "trainer-double").stdout
    numbers = itertools.count(1)
    sent: list[str] = []

    async def one_waits() -> bool:
        """The leader hears of it within a second: what comes before that still runs."""
        sent.append((await client.post("/optim_step", adam(model, next(numbers)))).json()["request_id"])
        return "drained" in command(mesh, "tail", sent[-1], "--no-follow").stdout

    await eventually(one_waits, SOON)
    waiting = sent[-1]
    assert command(mesh, "trainers", "resume", "trainer-double").exit_code == 0
    assert command(mesh, "tail", waiting, "--for", "60").exit_code == 0
    unknown = command(mesh, "trainers", "drain", "nobody")
    assert unknown.exit_code == 1 and "nobody is not known" in unknown.stderr
    await client.close()


async def test_gc_and_snapshots_name_what_there_is_and_a_settled_request_stays_where_it_is(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    await saved(client, model, 1, "held", "save_weights_for_sampler")
    made = (await client.post("/optim_step", adam(model, 2))).json()["request_id"]
    await client.future(made)
    assert "settled" in command(mesh, "requests", "requeue", made).stderr
    await eventually(lambda: "_version_held_" in command(mesh, "snapshots").stdout, SOON)
    assert parsed(command(mesh, "snapshots", "--pool", "double", "--json"))["samplers"][0]["problem"] == ""
    assert command(mesh, "snapshots", "--pool", "nobody").exit_code == 1
    found = parsed(command(mesh, "gc", "--within", "48", "--limit", "1000", "--json"))["reports"]
    subjects = {item["subject"] for report in found if report["kind"] == "result" for item in report["items"]}
    assert made in subjects
    assert made not in command(mesh, "gc").stdout
    await client.close()


async def test_a_lost_request_is_put_back_and_runs(mesh: MeshProcesses) -> None:
    """Redis forgot the unit, so that the next life of the trainer did not take it back."""
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    mesh.inject("trainer", [{"kind": "optim", "action": "hold_before", "times": 0}])
    lost = (await client.post("/optim_step", adam(model, 1))).json()["request_id"]
    await eventually(lambda: "issued" in timeline(mesh.scheduler, lost), SOON)
    before = [one.incarnation for one in trainers(mesh.scheduler)]
    async with Redis.from_url(f"redis://{mesh.mesh.addresses.redis}") as redis:
        await redis.delete(keys.running_units(POOL))
        mesh.kill("trainer")
        mesh.inject("trainer", [])
        await eventually(lambda: [one.incarnation for one in trainers(mesh.scheduler)] != before, 3 * SOON)
        (now,) = [one.incarnation for one in trainers(mesh.scheduler)]

        async def adopted() -> bool:
            return await redis.hget(keys.cell(POOL), "incarnation") == now.encode()

        await eventually(adopted, 3 * SOON)
    assert command(mesh, "requests", "requeue", lost).stdout == "1 request of its unit waits again\n"
    assert "put back by an operator" in (told := command(mesh, "tail", lost)).stdout and told.exit_code == 0
    await client.close()
