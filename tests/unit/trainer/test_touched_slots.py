"""What one slot's optimizer step reads, moves and synchronises; slots of several ranks side by side; whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.common.errors import InvalidInput
from services.trainer.engine import Adam, Layout, SlotDatum
from services.trainer.megatron.engine import MegatronEngine
from services.trainer.megatron.runtime import Runtime
from services.trainer.settings import Settings
from tests.unit.trainer import reference
from tests.unit.trainer.rig import ADAM, ALL, CROSS_ENTROPY, layout, on_slot, randomize, same, supervised

CURVE = Adam(2e-2, 0.9, 0.95, 1e-3, 0.01, 0.0)
"""A large eps: with a small one the first step is the gradient's sign, which amplifies rounding."""
STEPS = 6


def test_a_step_synchronises_the_slots_it_steps_and_no_other_OPT_10(
    engine: MegatronEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slot in range(4):
        randomize(engine, slot, layout(4 + slot), seed=slot)
        engine.run_pass(on_slot(slot, supervised(slot, 20)), CROSS_ENTROPY, backward=True)
    others = [engine.slot_digest(slot) for slot in (0, 3)]
    sent: list[int] = []

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def summed(self: Runtime, tensor: torch.Tensor) -> Any:
            sent.append(tensor.numel())
            return original(self, tensor)

        return summed

    monkeypatch.setattr(Runtime, "sum_over_dp", recording(Runtime.sum_over_dp))
    engine.optim_steps([(1, ADAM), (2, ADAM)])
    assert sent == [engine.slots.get(slot).plan.size for slot in (1, 2)]
    assert [engine.slot_digest(slot) for slot in (0, 3)] == others


@pytest.mark.parametrize("ranks", [(8, 3), (3, 8), (1, 16)])
def test_mixed_ranks_hold_and_export_their_own_rank_and_nothing_else_OPT_08(
    engine_for: Callable[..., MegatronEngine], ranks: tuple[int, int]
) -> None:
    engine = engine_for("qwen3")
    for slot, rank in enumerate(ranks):
        engine.init_slot(slot, layout(rank), seed=slot)
    for number in range(3):
        datums = [SlotDatum(slot, supervised(10 * number + slot, 15 + slot)) for slot in range(2)]
        engine.run_pass(datums, CROSS_ENTROPY, backward=True)
        engine.optim_steps([(0, ADAM), (1, ADAM)])
    for slot, rank in enumerate(ranks):
        image, state = engine.capture(slot, moments=True), engine.slots.get(slot)
        shapes = engine.expected_shapes(layout(rank))
        for values in (image.weights, image.exp_avg, image.exp_avg_sq):
            assert {name: tuple(value.shape) for name, value in values.items()} == shapes
        assert all(rank in shape for shape in shapes.values())
        assert state.weights.tensor.numel() == state.plan.size == sum(math.prod(shape) for shape in shapes.values())
        assert all(bool(value.any()) for value in image.weights.values())


def _alone(engine: MegatronEngine, rank: int) -> dict[str, torch.Tensor]:
    engine.init_slot(0, layout(rank), seed=7)
    engine.run_pass(on_slot(0, supervised(1, 20)), CROSS_ENTROPY, backward=True)
    engine.optim_steps([(0, ADAM)])
    return engine.capture(0, moments=False).weights


def test_a_slot_that_held_a_higher_rank_keeps_nothing_of_it_OPT_08_OPT_02(
    engine_for: Callable[..., MegatronEngine],
) -> None:
    used = engine_for("qwen3")
    randomize(used, 0, layout(16), seed=1)
    used.run_pass(on_slot(0, supervised(2, 20)), CROSS_ENTROPY, backward=True)
    used.clear_slot(0)
    assert same(_alone(used, 4), _alone(engine_for("qwen3"), 4))


def _engine_curve(engine: MegatronEngine, adam: Adam) -> list[float]:
    losses = []
    for number in range(STEPS):
        datums = on_slot(0, supervised(number % 2, 25), supervised(5, 12))
        losses.append(sum(result.loss for result in engine.run_pass(datums, CROSS_ENTROPY, backward=True)))
        engine.optim_steps([(0, adam)])
    return losses


def _reference_curve(model: torch.nn.Module, adam: Adam) -> list[float]:
    parameters = [value for value in model.parameters() if value.requires_grad]
    betas = (adam.beta1, adam.beta2)
    optimizer = torch.optim.AdamW(parameters, adam.learning_rate, betas, adam.eps, adam.weight_decay, foreach=False)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for datum in (supervised(number % 2, 25), supervised(5, 12)):
            loss = reference.loss_of(model, datum, "cross_entropy", {})
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        optimizer.step()
    return losses


def test_the_loss_curve_is_that_of_a_plain_training_loop_OPT_12(
    engine_for: Callable[..., MegatronEngine], model_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    """Hugging Face's model, PEFT's adapter and torch's AdamW, from the same start; the control: 5 % more rate."""
    engine = engine_for("qwen3")
    image = randomize(engine, 0, ALL, seed=3)
    expected = _reference_curve(reference.load_adapter(image, model_dir("qwen3"), tmp_path / "adapter"), CURVE)
    assert _engine_curve(engine, CURVE) == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < 0.9 * expected[0]
    engine.restore(0, image)
    control = _engine_curve(engine, replace(CURVE, learning_rate=1.05 * CURVE.learning_rate))
    assert control != pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pp", 2),
        ("ep", 2),
        ("cp", 2),
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("slots", 0),
        ("max_rank", 0),
        ("tp", 0),
    ],
)
def test_options_the_optimizer_cannot_honour_are_refused_at_start_OPT_11_OPT_13(field: str, value: float) -> None:
    settings = Settings(model_path="m", store_root="s", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=field):
        settings.check()


@pytest.mark.parametrize("rank", [0, -1, 33])
def test_a_rank_beyond_the_slots_is_refused_before_anything_is_touched_OPT_13(
    engine: MegatronEngine, rank: int
) -> None:
    engine.init_slot(0, ALL, seed=1)
    before = engine.slot_digest(0)
    with pytest.raises(Exception, match=f"rank {rank}"):
        engine.init_slot(0, Layout(rank, 32.0, True, True, True), seed=1)
    assert engine.slot_digest(0) == before
