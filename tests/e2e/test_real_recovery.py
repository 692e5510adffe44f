"""kill -9 of the real trainer in a job: the same weights, the same moments, and no error at the client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from safetensors.numpy import load_file

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.doubles.admin import list_pools, trainers
from tests.doubles.mesh import RealMeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

STEPS = 12
READY_SECONDS = 120.0


@pytest.fixture
def service(real_mesh: RealMeshProcesses) -> Iterator[Any]:
    client = tinker.ServiceClient(base_url=real_mesh.base_url, api_key=real_mesh.api_key)
    yield client
    close(client)


class Trainer:
    """The mesh's trainer as a test kills it; `resumed` are seconds from the kill to the next answer."""

    def __init__(self, mesh: RealMeshProcesses) -> None:
        self.mesh = mesh
        self.resumed: list[float] = []

    def kill(self) -> float:
        self.mesh.kill("trainer")
        return time.monotonic()

    def running(self) -> bool:
        return any(trainer.running_unit for trainer in trainers(self.mesh.scheduler))


def batch(step: int) -> list[Any]:
    random = np.random.default_rng((99, step))
    rows = [random.integers(1, 512, 17 + step) for _ in range(3)]
    return [supervised(row[:-1], row[1:]) for row in rows]


def job(service: Any, mesh: RealMeshProcesses, between: Callable[[int], None], inside: Callable[[int], None]) -> str:
    """Path of the final state. `between` is called after each forward_backward, `inside` while one runs."""
    training = service.create_lora_training_client(base_model=mesh.settings.model_name, rank=8, seed=23).result()
    for step in range(1, STEPS + 1):
        backward = training.forward_backward(batch(step), "cross_entropy")
        inside(step)
        backward.result()
        between(step)
        training.optim_step(tinker.types.AdamParams(learning_rate=5e-3)).result()
    return str(training.save_state("final").result().path)


def tensors(mesh: RealMeshProcesses, path: str) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    directory: Path = mesh.settings.store / public_directory(parse_tinker_path(path))
    files = ("adapter_model.safetensors", "optimizer.safetensors")
    return {name: value for file in files for name, value in load_file(directory / file).items()}


def nothing(_step: int) -> None:
    return


def test_a_job_of_12_steps_survives_two_kills_bit_by_bit_GAP_02_GAP_11_FAIL_14(
    service: Any, real_mesh: RealMeshProcesses
) -> None:
    calm = tensors(real_mesh, job(service, real_mesh, nothing, nothing))
    before = list_pools(real_mesh.scheduler)[0].recovery
    trainer, restarts = Trainer(real_mesh), real_mesh.restarts("trainer")
    killed: dict[int, float] = {}

    def between(step: int) -> None:
        if step == 5:
            killed[step] = trainer.kill()
        elif step == 8:
            trainer.resumed.append(time.monotonic() - killed[step])

    def inside(step: int) -> None:
        if step == 6:
            trainer.resumed.append(time.monotonic() - killed[5])
        if step == 8:
            deadline = time.monotonic() + 5.0
            while not trainer.running() and time.monotonic() < deadline:
                time.sleep(0.001)
            killed[step] = trainer.kill()

    stormy = tensors(real_mesh, job(service, real_mesh, between, inside))
    real_mesh.wait_restarted("trainer", restarts + 2, READY_SECONDS)
    print(f"time to resume: {', '.join(f'{seconds:.1f} s' for seconds in trainer.resumed)}")
    assert calm.keys() == stormy.keys()
    different = [name for name in calm if not np.array_equal(calm[name], stormy[name])]
    assert different == []
    seen = list_pools(real_mesh.scheduler)[0].recovery
    assert (seen.trainers_lost_total - before.trainers_lost_total, seen.replay_mismatches_total) == (2, 0)
