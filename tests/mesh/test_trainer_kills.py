"""kill -9 of the trainer in the middle of a job: the client notices nothing, the final weights are the same."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tinker

from tests.doubles.admin import models, recovery
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised
from tests.mesh.test_kills import SLOW_UNITS, final_state

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]
ROUNDS = 12
POISON = 66


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[MeshProcesses]:
    variables = {"TINKERMESH_SCHEDULER_DURABLE_EVERY_STEPS": "4", "TINKERMESH_SCHEDULER_POISON_DEATHS": "9"}
    with MeshProcesses(tmp_path / "mesh", gateways=2, schedulers=2, variables=variables) as mesh:
        mesh.inject("trainer", SLOW_UNITS)
        yield mesh


def kill_trainer(mesh: MeshProcesses) -> float:
    """Seconds until the new one is ready."""
    restarts, began = mesh.restarts("trainer"), time.monotonic()
    mesh.kill("trainer")
    mesh.wait_restarted("trainer", restarts + 1)
    return time.monotonic() - began


@contextmanager
def watched(mesh: MeshProcesses) -> Iterator[Counter[int]]:
    """How often which status was answered to a look at any gateway's health, twenty times a second."""
    statuses: Counter[int] = Counter()
    over = threading.Event()

    def look() -> None:
        with httpx.Client(timeout=5) as client:
            while not over.wait(0.05):
                for url in mesh.gateway_urls:
                    statuses[client.get(f"{url}/api/v1/healthz").status_code] += 1

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join()


def test_kill_of_the_trainer_changes_no_bit_and_no_client_sees_it_GAP_02_FAIL_14(
    replicated: MeshProcesses, tmp_path: Path
) -> None:
    mesh = replicated
    calm = start_scenario(tmp_path / "calm", mesh.environment, BASE_MODEL, "--rounds", str(ROUNDS)).report()
    stormy_run = start_scenario(tmp_path / "stormy", mesh.environment, BASE_MODEL, "--rounds", str(ROUNDS))
    with watched(mesh) as health:
        for mark in ("created", "round 1", "round 2", "round 7", "saved"):
            stormy_run.wait_mark(mark)
            kill_trainer(mesh)
        stormy = stormy_run.report()
    assert set(health) == {200}
    assert health[200] > 40
    check_scenario(stormy, vocab=512, tolerance=0.0)
    assert final_state(mesh, stormy) == final_state(mesh, calm)
    for part in ("chunked", "rounds", "resumed"):
        assert stormy[part] == calm[part]
    seen = recovery(mesh.scheduler)
    assert (seen.trainers_lost_total, seen.replay_mismatches_total, seen.poisoned_total) == (5, 0, 0)
    assert seen.durables_total > 0 and seen.replay_units_total > 0


def test_a_command_that_kills_the_trainer_twice_fails_and_its_neighbour_goes_on_MESH_04_MESH_05(
    mesh: MeshProcesses,
) -> None:
    def batch(length: int) -> list[tinker.types.Datum]:
        return [supervised(list(range(1, length + 1)))]

    service = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
    good, bad = (service.create_lora_training_client(base_model=BASE_MODEL, rank=8).result() for _ in range(2))
    step = tinker.types.AdamParams(learning_rate=1e-3)
    before, restarts = recovery(mesh.scheduler), mesh.restarts("trainer")
    for client in (good, bad):
        client.forward_backward(batch(5), "cross_entropy").result()
        client.optim_step(step).result()
    path = bad.save_state("kept").result().path
    mesh.inject("trainer", [{"kind": "pass", "action": "die_before", "length": POISON, "times": 0}])
    try:
        poison = bad.forward_backward(batch(POISON), "cross_entropy")
        beside = good.forward_backward(batch(6), "cross_entropy")
        with pytest.raises(Exception, match=f"stopped the trainer 2 times.*restore from {path}"):
            poison.result(timeout=60)
        assert beside.result(timeout=60).metrics["loss:sum"] > 0
        assert good.optim_step(step).result(timeout=60).metrics["window_datums"] == 1
    finally:
        mesh.inject("trainer", [])
    assert mesh.restarts("trainer") - restarts == 2
    seen = recovery(mesh.scheduler)
    assert seen.poisoned_total - before.poisoned_total == 1
    assert bad.get_info().model_id not in {model.model_id for model in models(mesh.scheduler)}
    close(service)
