"""Two trainers of one pool behind the gateway: a client sees one service, whatever happens to either (GAP-17)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tinker

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.doubles.admin import drain, models, recovery, trainers
from tests.doubles.eventually import until
from tests.doubles.fake_trainer import BASE_MODEL, POOL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.published import read_state
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]

VARIABLES = {"TINKERMESH_SCHEDULER_CELL_LOST_SECONDS": "1", "TINKERMESH_SCHEDULER_REGISTRATION_SECONDS": "5"}
Client = tinker.TrainingClient


@pytest.fixture
def two_trainers(tmp_path: Path) -> Iterator[MeshProcesses]:
    with MeshProcesses(tmp_path / "mesh", schedulers=2, trainers=2, variables=VARIABLES) as mesh:
        yield mesh


def cells(mesh: MeshProcesses) -> dict[str, int]:
    """How many models live where."""
    return dict(Counter(model.cell for model in models(mesh.scheduler)))


def begin(clients: Sequence[Client], number: int) -> list[Any]:
    """A round of equal work for each; answers its futures."""
    adam = tinker.types.AdamParams(learning_rate=1e-3)
    data = [supervised(list(range(number, number + length))) for length in (5, 7)]
    return [future for one in clients for future in (one.forward_backward(data, "cross_entropy"), one.optim_step(adam))]


def end(futures: Sequence[Any]) -> None:
    """Models of one seed are equal, wherever they live and whatever their trainers went through."""
    losses = {future.result(timeout=120).metrics["loss:sum"] for future in futures[::2]}
    assert len(losses) == 1
    assert {future.result(timeout=120).metrics["window_datums"] for future in futures[1::2]} == {2}


def check_equal(mesh: MeshProcesses, clients: Sequence[Client], name: str) -> None:
    paths = [one.save_state(name).result(timeout=120).path for one in clients]
    states = [read_state(mesh.settings.store, public_directory(parse_tinker_path(path))) for path in paths]
    assert all(state == states[0] for state in states)


def test_six_models_on_two_trainers_through_death_drain_and_loss_of_one_GAP_17(two_trainers: MeshProcesses) -> None:
    mesh = two_trainers
    until(lambda: len(trainers(mesh.scheduler)) == 2, 60)
    service = tinker.ServiceClient(base_url=mesh.base_url, api_key=mesh.api_key)
    clients = [service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=7).result() for _ in range(6)]
    assert cells(mesh) == {"0": 3, "1": 3}
    assert {one.cell: one.models for one in trainers(mesh.scheduler)} == {"0": 3, "1": 3}
    end(begin(clients, 1))

    futures = begin(clients, 2)
    mesh.kill("trainer-1")
    mesh.wait_restarted("trainer-1", 1)
    end(futures)

    drain(mesh.scheduler, POOL, "trainer-double-1", on=True)
    futures = begin(clients, 3)
    until(lambda: cells(mesh) == {"0": 6}, 60)
    end(futures)
    drain(mesh.scheduler, POOL, "trainer-double-1", on=False)
    check_equal(mesh, clients, "three")

    clients += [service.create_lora_training_client(base_model=BASE_MODEL, rank=8, seed=7).result() for _ in range(2)]
    assert cells(mesh) == {"0": 6, "1": 2}
    for number in (1, 2, 3):
        end(begin(clients[6:], number))
    futures = begin(clients, 4)
    mesh.kill("trainer-1", signal.SIGSTOP)
    until(lambda: cells(mesh) == {"0": 8}, 60)
    end(futures)
    mesh.kill("trainer-1", signal.SIGCONT)  # as if nothing had been: it must end, and another starts
    mesh.wait_restarted("trainer-1", 2)
    end(begin(clients, 5))
    check_equal(mesh, clients, "five")
    assert "was superseded by another one" in mesh.logs("trainer-1")
    seen = recovery(mesh.scheduler)
    assert (seen.replay_mismatches_total, seen.poisoned_total, seen.moved_total) == (0, 0, 5)
    close(service)
