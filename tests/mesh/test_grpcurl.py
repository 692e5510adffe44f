"""Every command of docs/operate.md, upgrade.md and recovery.md, by the real grpcurl, on a mesh with work in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_trainer import POOL
from tests.doubles.grpcurl import Documented, documented, run
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.busy import Busy, submitted
from tests.mesh.main_path import created

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text()
ALSO = [(ROOT / "docs" / name).read_text() for name in ("upgrade.md", "recovery.md")]
BLOCKS = [block for block in documented(PAGE) if not block.commands[0].startswith("export")]
BLOCKS += [block for text in ALSO for block in documented(text)]
TRAINER_ID = "trainer-double"
EXAMPLE = {"sampler-smollm2-135m-instruct-127.0.0.1:7003": "sampler-double", "smollm2-135m-instruct": POOL}
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-z])[0-9a-f]{12,64}\b")
NUMBER = re.compile(r"\d+")
MODELS_OWN = re.compile(r"\.facts\.|sdk_version|\.layout")  # of the model and the client of the example


@pytest.fixture(scope="module")
def busy(plain_mesh: MeshProcesses) -> Iterator[Busy]:
    with Busy.start(plain_mesh) as made:
        yield made


def replacements(busy: Busy) -> dict[str, str]:
    addresses = busy.mesh.mesh.addresses
    return {
        "127.0.0.1:7001": addresses.schedulers[0],
        "127.0.0.1:7002": addresses.trainers[0],
        "127.0.0.1:7003": addresses.sampler,
        "POOL": POOL,
        "TRAINER_ID": TRAINER_ID,
        "SAMPLER_ID": "sampler-double",
        "ADAPTER_NAME": busy.adapter[0],
        "ADAPTER_PATH": busy.adapter[1],
        "TENANT_ID": busy.tenant,
        "REQUEST_ID": busy.running,
        "FAILED_REQUEST": busy.failed,
        "BUSY_MODEL": f"{busy.session}:train:0",
        "IDLE_MODEL": f"{busy.session}:train:2",
        "SPARE_MODEL": busy.spare,
        "STATE_DIR": str(busy.mesh.settings.state_dir),
    }


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_documented_command_works(block: Documented, busy: Busy) -> None:
    for command in block.commands:
        assert command.startswith(("grpcurl ", "tinkermesh keys")), command
        done = run(command, replacements(busy))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if block.kind == "json":
            missing = list(absent(json.loads(block.output), json.loads(done.stdout)))
            assert missing == [], f"{command}\n{done.stdout}"
        elif block.kind == "text":
            assert normal(done.stdout).split() == normal(block.output).split()


def normal(text: str) -> str:
    """Without what differs from mesh to mesh: names of the page's example, ids, addresses, times and numbers."""
    for name, here in EXAMPLE.items():
        text = text.replace(name, here)
    return NUMBER.sub("N", ID.sub("ID", text))


def absent(said: Any, seen: Any, path: str = "") -> Iterator[str]:
    """Where `seen` lacks a field that `said` has, or says something else; of lists, one element that fits is enough."""
    if isinstance(said, dict):
        for name, value in said.items():
            if not isinstance(seen, dict) or name not in seen:
                yield f"{path}.{name}"
            else:
                yield from absent(value, seen[name], f"{path}.{name}")
    elif isinstance(said, list):
        for one in said:
            tries = [list(absent(one, other, f"{path}[]")) for other in seen]
            yield from min(tries, key=len, default=[f"{path}[]"])
    elif isinstance(said, bool) and seen != said:
        yield f"{path} = {said}"
    elif isinstance(said, str) and not MODELS_OWN.search(path) and normal(said) != normal(str(seen)):
        yield f"{path} = {said}, not {seen}"


def test_absent_names_what_is_missing() -> None:
    """Negative control of the comparison."""
    said = {"a": [{"b": 1, "on": True}], "c": {"d": "x"}}
    assert list(absent(said, {"a": [{"b": 2, "on": True}], "c": {"d": "x"}})) == []
    assert list(absent(said, {"a": [{"b": 2, "on": False}], "c": {}})) == [".a[].on = True", ".c.d"]
    assert list(absent(said, {"a": [], "c": {"d": "x"}})) == [".a[]"]
    assert list(absent({"e": "unit 12 waits"}, {"e": "unit 7 runs"})) == [".e = unit 12 waits, not unit 7 runs"]
    assert list(absent({"e": "unit 12 waits"}, {"e": "unit 7 waits"})) == []


def test_the_page_documents_every_admin_call(busy: Busy) -> None:
    listed = run("grpcurl -plaintext 127.0.0.1:7001 list tinkermesh.v1.Admin", replacements(busy)).stdout.split()
    assert len(listed) == 24
    commands = " ".join(command for block in BLOCKS for command in block.commands)
    assert [name for name in listed if f"tinkermesh.v1.Admin/{name.rsplit('.', 1)[1]}" not in commands] == []


@pytest.mark.parametrize("port", ["7001", "7002", "7003"])
def test_every_grpc_service_has_health_reflection_and_channelz(port: str, busy: Busy) -> None:
    commands = [command for block in BLOCKS for command in block.commands]
    for part in ("grpc.health.v1.Health/Check", "list", "grpc.channelz.v1.Channelz/GetServers"):
        assert any(f"127.0.0.1:{port} {part}" in command for command in commands)


def test_health_watch_follows_a_service(busy: Busy) -> None:
    command = "grpcurl -plaintext -max-time 1 127.0.0.1:7001 grpc.health.v1.Health/Watch"
    done = run(command, replacements(busy))
    assert '"SERVING"' in done.stdout
    assert done.returncode == 64 + 4, done.stderr  # the deadline, not an error of ours


def test_waiting_requests_say_what_they_wait_for(busy: Busy) -> None:
    for request_id, text in ((busy.running, "turn"), (busy.behind_gap, "waiting for seq_id 1, which has not arrived")):
        report = inspected(busy, request_id)
        assert report["queue_state"] == "active"
        assert text in report["queue_state_reason"]


def inspected(busy: Busy, request_id: str) -> dict[str, Any]:
    command = f"""grpcurl -plaintext -d '{{"request_id": "{request_id}"}}' 127.0.0.1:7001 tinkermesh.v1.Admin/"""
    done = run(f"{command}InspectRequest", replacements(busy))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def admin(busy: Busy, method: str, trainer_id: str = TRAINER_ID) -> int:
    body = json.dumps({"pool": POOL, "trainer_id": trainer_id})
    return run(
        f"grpcurl -plaintext -d '{body}' 127.0.0.1:7001 tinkermesh.v1.Admin/{method}", replacements(busy)
    ).returncode


async def test_drain_keeps_work_waiting_and_resume_runs_it(busy: Busy) -> None:
    """The running unit finishes, nothing further starts, everything is still accepted; after resume all of it runs."""
    assert admin(busy, "DrainTrainer") == 0
    busy.release("trainer")
    client = WireClient([busy.mesh.base_url], busy.mesh.api_key)
    await client.future(busy.running)
    later = await submitted(client, "/forward_backward", batch(f"{busy.session}:train:0", 3, seed=2))
    answer = await client.post("/retrieve_future", {"request_id": later})
    assert answer.status_code == 408
    assert answer.json()["queue_state"] == "paused_capacity"
    assert "drained" in answer.json()["queue_state_reason"]
    report = inspected(busy, later)
    assert report["future"]["state"] == "queued"
    assert report["queue_state"] == "paused_capacity"
    assert admin(busy, "ResumeTrainer") == 0
    assert "error" not in await client.future(later)
    assert [entry["event"] for entry in inspected(busy, later)["timeline"]][:4] == [
        "admitted",
        "issued",
        "executed",
        "settled",
    ]
    await client.close()


def test_an_unknown_trainer_is_not_drained(busy: Busy) -> None:
    assert admin(busy, "DrainTrainer", "nobody") == 64 + 5


async def test_finished_work_leaves_queues_and_slots(busy: Busy) -> None:
    client = WireClient([busy.mesh.base_url], busy.mesh.api_key)
    model = await created(client, await client.session(), 0)
    unloaded = await submitted(client, "/unload_model", {"model_id": model})
    await client.future(unloaded)
    await client.close()
    for method in ("ListQueues", "ListSlots"):
        done = run(f"grpcurl -plaintext 127.0.0.1:7001 tinkermesh.v1.Admin/{method}", replacements(busy))
        assert model not in done.stdout


def test_links_of_the_page_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
