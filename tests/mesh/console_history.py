"""What the tests of the console look at: two tenants' real training through the SDK, with what its futures told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from tinker import types

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_close import close
from tests.doubles.sdk_datums import supervised

OTHER_KEY = "tml-the-other-tenant-of-the-console"
SCRIPT = '<script>window.broken = 1</script><img src=x onerror="window.broken = 2">'
OTHER_NAME = "SECRET-of-the-other-tenant"
POSITIONS = 24
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """One step, as the SDK's futures answered."""

    step: int
    loss_sum: float
    learning_rate: float
    grad_norm: float

    @property
    def loss(self) -> float:
        return self.loss_sum / POSITIONS


@dataclass(slots=True)
class History:
    """`runs`: by name; `curves`: by run id; `cause`: of the failed request as its client read it."""

    runs: dict[str, str] = field(default_factory=dict)
    curves: dict[str, list[Told]] = field(default_factory=dict)
    other_runs: list[str] = field(default_factory=list)
    cause: str = ""
    failed_run: str = ""
    broken: Any = None  # the training client of that run


def run(service: tinker.ServiceClient, name: str, steps: int = 0, start: float = 2.0) -> tuple[Any, list[Told]]:
    """A model of this name and what its steps told. Weights shrink from step to step, so that the loss falls."""
    training = service.create_lora_training_client(
        base_model=BASE_MODEL, rank=8, seed=3, user_metadata={"name": name, "data": "harbour lights"}
    ).result(SECONDS)
    random, sent = np.random.default_rng(7), []
    for step in range(1, steps + 1):
        scale = (start * math.exp(-3.0 * step / steps) + 0.35 + 0.04 * random.random()) / 4
        tokens = [int(token) for token in random.integers(1, 400, POSITIONS)]
        rate = 1e-3 * min(1.0, step / 8)
        datum = supervised(tokens, weights=np.full(POSITIONS, scale))
        passed = training.forward_backward([datum], "cross_entropy")
        sent.append((step, rate, passed, training.optim_step(types.AdamParams(learning_rate=rate))))
    told = [
        Told(step, passed.result(SECONDS).metrics["loss:sum"], rate, stepped.result(SECONDS).metrics["grad_norm"])
        for step, rate, passed, stepped in sent
    ]
    return training, told


def failure_of(future: Any) -> str:
    """The text its client reads."""
    try:
        future.result(SECONDS)
    except tinker.RequestFailedError as error:
        return str(error)
    raise AssertionError("it should have failed")


@contextmanager
def made(mesh: MeshProcesses) -> Iterator[History]:
    """Sessions stay open while the block runs."""
    mesh.add_key(OTHER_KEY)
    history = History()
    mine, theirs = (tinker.ServiceClient(base_url=mesh.base_url, api_key=key) for key in (mesh.api_key, OTHER_KEY))
    for name, steps, start in (("harbour-sft", 60, 2.4), ("harbour-sft, restarted", 45, 1.5), (SCRIPT, 6, 1.0)):
        training, told = run(mine, name, steps, start)
        history.runs[name] = training.model_id
        history.curves[training.model_id] = told
    for name in (OTHER_NAME, f"{OTHER_NAME} 2"):
        history.other_runs.append(run(theirs, name, 3)[0].model_id)
    broken, _ = run(mine, "broken")
    history.broken = broken
    history.failed_run = history.runs["broken"] = broken.model_id
    without = types.Datum(model_input=types.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": [1, 2]})
    history.cause = failure_of(broken.forward_backward([without], "ppo"))
    yield history
    for service in (mine, theirs):
        close(service)
