"""One scenario, run on one rank and on two, whose outcomes must agree; and its launcher."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp

from services.common.datum_blocks import Datum
from services.common.errors import ServerError
from services.trainer.engine import Adam, Layout, Loss, SlotDatum, SlotImage
from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from services.trainer.megatron.runtime import stop_runtime
from tests.unit.trainer.rig import ADAM, ALL, CROSS_ENTROPY, layout, on_slot, policy, scaled, supervised

SHAPES: dict[int, Layout] = {0: layout(8), 1: layout(4, unembed=False), 2: layout(5, mlp=False)}
# A large eps: with a small one, Adam's first step is the gradient's sign and amplifies rounding.
CLIPPED = Adam(1e-2, 0.9, 0.95, 1e-3, 0.01, 0.5)
JOIN_SECONDS = 240


def fill(engine: MegatronEngine) -> None:
    """The images of SHAPES, made on one rank's own arithmetic so that every topology starts alike."""
    for slot, shape in SHAPES.items():
        engine.restore(slot, start_image(engine, shape, slot))


def start_image(engine: MegatronEngine, shape: Layout, seed: int) -> SlotImage:
    generator = torch.Generator().manual_seed(seed)
    shapes = engine.expected_shapes(shape)
    return SlotImage(shape, {name: torch.randn(size, generator=generator) * 0.05 for name, size in shapes.items()})


def run(engine: MegatronEngine) -> dict[str, Any]:
    """Everything a tenant can observe, as plain tensors and numbers; complete on rank 0."""
    fill(engine)
    items = [SlotDatum(slot, supervised(10 * slot + i, 9 + 5 * i + slot)) for slot in SHAPES for i in range(2)]
    items.insert(3, SlotDatum(1, scaled(supervised(77, 12), float("inf"))))
    results = engine.run_pass(items, CROSS_ENTROPY, backward=True)
    outcome: dict[str, Any] = {
        "failures": [bool(result.failure) for result in results],
        "losses": [result.loss for result in results],
        "logprobs": [torch.from_numpy(result.logprobs) for result in results],
        "gradients": {slot: engine.window_gradients(slot) for slot in SHAPES},
    }
    # Only slot 0 gets more: ranks without one of its datums must still take part.
    engine.run_pass(on_slot(0, supervised(5, 30)), CROSS_ENTROPY, backward=True)
    metrics = engine.optim_steps([(slot, CLIPPED) for slot in SHAPES])
    outcome["norms"] = [metrics[slot].metrics["grad_norm"] for slot in SHAPES]
    images = {slot: engine.capture(slot, moments=True) for slot in SHAPES}
    outcome["weights"] = {slot: image.weights for slot, image in images.items()}
    outcome["exp_avg"] = {slot: image.exp_avg for slot, image in images.items()}
    outcome["steps"] = [image.step for image in images.values()]
    forward = engine.run_pass(items[:3], CROSS_ENTROPY, backward=False)
    outcome["after"] = [torch.from_numpy(result.logprobs) for result in forward]
    outcome["skipped"] = _poisoned_step(engine)
    engine.init_slot(3, ALL, seed=11)
    outcome["fresh"] = engine.capture(3, moments=False).weights
    outcome["other"] = {name: _other_loss(engine, name, datums) for name, datums in _other_datums().items()}
    return outcome


def _other_datums() -> dict[str, list[Datum]]:
    """Three each: an odd one for two data-parallel ranks, more than one micro-batch."""
    lessons = [policy(i, n, np.full((n, 1), -6.0, np.float32)) for i, n in enumerate((11, 25, 8))]
    wide = [supervised(i, n, width=1 + 2 * i) for i, n in enumerate((11, 25, 8))]
    return {"gspo": lessons, "stable_reinforce": lessons, "cross_entropy": wide}


def _other_loss(engine: MegatronEngine, name: str, datums: list[Datum]) -> dict[str, Any]:
    start = start_image(engine, SHAPES[0], 0)
    engine.restore(0, start)
    results = engine.run_pass(on_slot(0, *datums), Loss(name, {}), backward=True)
    outcome = {"losses": [one.loss for one in results], "gradients": engine.window_gradients(0)}
    engine.restore(0, start)  # an open window is a partial sum: other on each replica
    return outcome


def _poisoned_step(engine: MegatronEngine) -> list[dict[str, float]]:
    """A NaN in one rank's partial gradient: all ranks skip that slot, and only that one."""
    engine.run_pass([SlotDatum(0, supervised(1, 8)), SlotDatum(1, supervised(2, 8))], CROSS_ENTROPY, backward=True)
    window = engine.slots.get(0).window
    if window is not None and engine.runtime.rank == engine.runtime.world - 1:
        window.tensor[-1] = float("nan")
    metrics = engine.optim_steps([(0, ADAM), (1, ADAM)])
    return [dict(metrics[slot].metrics) for slot in (0, 1)]


def _one_rank_raises(engine: MegatronEngine) -> dict[str, Any]:
    before = engine.slot_digest(0)
    model = engine._passes._model
    genuine = model.hidden_states

    def fail(tokens: object, packed: object) -> object:
        raise MemoryError("only this rank")

    if engine.runtime.rank == 1:
        model.hidden_states = fail  # type: ignore[method-assign]
    try:
        engine.run_pass(on_slot(0, supervised(1, 8), supervised(2, 8)), CROSS_ENTROPY, backward=True)
        raised = "nothing"
    except (ServerError, MemoryError) as error:
        raised = f"{type(error).__name__}: {error}"
    model.hidden_states = genuine  # type: ignore[method-assign]
    again = engine.run_pass(on_slot(0, supervised(1, 8), supervised(2, 8)), CROSS_ENTROPY, backward=False)
    return {"raised": raised, "unchanged": engine.slot_digest(0) == before, "again": [result.loss for result in again]}


def _rank_main(rank: int, directory: str, model: str) -> None:
    torch.set_num_threads(1)
    for name, sizes in (("tp", {"tensor_parallel": 2}), ("dp", {"data_parallel": 2})):
        config = EngineConfig(
            Path(model), micro_batch_tokens=30, init_method=f"file://{directory}/{name}-store", **sizes
        )
        engine = MegatronEngine(config, rank, 2)
        peaks = engine.pass_peaks([32, 64])  # as a trainer does first
        outcome = run(engine) | {"peaks": peaks}
        digests = [engine.slot_digest(slot) for slot in SHAPES]
        if name == "dp":
            outcome |= _one_rank_raises(engine)
        torch.save(outcome | {"digests": digests}, f"{directory}/{name}-{rank}.pt")
        stop_runtime()


def run_on_two_ranks(directory: Path, model: Path) -> dict[str, list[dict[str, Any]]]:
    """'tp' and 'dp' -> the outcome of each rank."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = mp.spawn(_rank_main, args=(str(directory), str(model)), nprocs=2, join=False)
    if not _joined(context):
        raise TimeoutError(f"two ranks did not finish in {JOIN_SECONDS} s")
    return {
        name: [torch.load(directory / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]
        for name in ("tp", "dp")
    }


def _joined(context: Any) -> bool:
    end = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < end:
        if context.join(timeout=5):
            return True
    for process in context.processes:
        process.kill()
    return False
