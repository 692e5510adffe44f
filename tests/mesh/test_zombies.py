"""GAP-03, MESH-02: a leader or a trainer that was stopped for long and goes on is as harmless as a dead one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.child import State
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.journal import datum_counts, unit_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.main_path import accepted, adam, created, done, saved
from tests.mesh.test_kills import SLOW_UNITS, wait_leader

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(240)]


def wait_for(condition, what: str, seconds: float = 90.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_leader_stopped_beyond_its_lease_is_refused_and_changes_nothing_GAP_03_MESH_02(
    fresh_mesh: MeshProcesses, tmp_path: Path
) -> None:
    mesh = fresh_mesh
    mesh.inject("trainer", SLOW_UNITS)
    run = start_scenario(tmp_path / "run", mesh.environment, BASE_MODEL, "--rounds", "4")
    run.wait_mark("round 1")
    stopped = wait_leader(mesh)
    mesh.kill(stopped, signal.SIGSTOP)
    try:
        wait_for(lambda: "leading term 2" in mesh.logs(other(stopped)), "nobody took the lease over")
    finally:
        mesh.kill(stopped, signal.SIGCONT)
    check_scenario(run.report(), vocab=512, tolerance=0.0)
    wait_for(lambda: "refused: " in mesh.logs(stopped) or "refused: " in mesh.logs("trainer"), "nothing was refused")
    assert set(datum_counts(mesh.journal()).values()) == {1}
    assert set(unit_counts(mesh.journal()).values()) == {1}


def other(scheduler: str) -> str:
    return "scheduler-1" if scheduler == "scheduler-0" else "scheduler-0"


class SecondTrainer:
    """Another trainer of the same pool and store, as an operator would start it while the first hangs."""

    def __init__(self, mesh: MeshProcesses, directory: Path) -> None:
        self.log = directory / "second.log"
        command = [sys.executable, "-m", "tests.doubles.fake_trainer", "--trainer-id", "trainer-second"]
        command += ["--scheduler", ",".join(mesh.mesh.addresses.schedulers), "--store-root", str(mesh.settings.store)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)


@pytest.fixture
def second(fresh_mesh: MeshProcesses, tmp_path: Path) -> Iterator[list[SecondTrainer]]:
    started: list[SecondTrainer] = []
    yield started
    for trainer in started:
        trainer.process.kill()
        trainer.process.wait(10)


def published(mesh: MeshProcesses) -> set[str]:
    runs = mesh.settings.store / "runs"
    return {str(path.relative_to(runs)) for path in runs.rglob("*")}


def test_a_trainer_stopped_beyond_its_registration_is_refused_everywhere_and_ends_GAP_03(
    fresh_mesh: MeshProcesses, second: list[SecondTrainer], tmp_path: Path
) -> None:
    mesh = fresh_mesh
    model = asyncio.run(train_and_capture(mesh))
    mesh.kill("trainer", signal.SIGSTOP)
    try:
        mesh.inject("trainer", [])
        second.append(SecondTrainer(mesh, tmp_path))
        asyncio.run(train_again(mesh))
        late = mesh.settings.store / "runs" / model / "weights" / "late"
        wait_for(late.is_symlink, "the save was not taken up by the trainer that recovered the model")
        before = published(mesh)
    finally:
        mesh.kill("trainer", signal.SIGCONT)
    mesh.wait_restarted("trainer", 1)
    log = mesh.logs("trainer")
    assert "refused: publication of runs/" in log or "refused: registration" in log
    assert "the engine ends: incarnation" in log
    assert published(mesh) == before
    assert mesh.mesh.supervisor.child("trainer").state is State.READY
    asyncio.run(train_again(mesh, number=7))
    assert second[0].process.poll() is None


async def train_and_capture(mesh: MeshProcesses) -> str:
    """A model with a save `late` that is captured and waits to be published."""
    client = WireClient([mesh.base_url], mesh.api_key)
    session = await client.session()
    model = await created(client, session)
    await done(client, "/forward_backward", batch(model, 1, seed=1))
    await done(client, "/optim_step", adam(model, 2))
    await saved(client, model, 3, "kept")
    mesh.inject("trainer", [{"kind": "publish", "action": "hold_before", "times": 0}])
    save = {"model_id": model, "seq_id": 4, "path": "late", "type": "save_weights"}
    await accepted(client, "/save_weights", save)
    await done(client, "/forward", batch(model, 5, seed=2, forward_only=True))
    await client.close()
    return model


async def train_again(mesh: MeshProcesses, number: int = 0) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session(), number)
    await done(client, "/forward_backward", batch(model, 1, seed=1))
    await done(client, "/optim_step", adam(model, 2))
    await saved(client, model, 3, f"mine-{number}")
    await client.close()
