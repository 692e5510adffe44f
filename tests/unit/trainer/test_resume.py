"""CKPT-05, 07, 09, 10: a captured slot resumes bitwise in another slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.trainer.engine import Loss, SlotDatum, SlotImage
from services.trainer.megatron.engine import MegatronEngine
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer.rig import ADAM, CROSS_ENTROPY, layout, on_slot, randomize, same, supervised

SHAPE = layout(6)
STEPS = 3


def _train(engine: MegatronEngine, slot: int, numbers: range) -> None:
    for number in numbers:
        items = [SlotDatum(slot, supervised(number, 20)), SlotDatum(slot, supervised(number + 100, 13))]
        engine.run_pass(items, CROSS_ENTROPY, backward=True)
        engine.optim_steps([(slot, ADAM)])


@pytest.fixture(params=["qwen3", "qwen3-moe"])
def trained(request: pytest.FixtureRequest, engine_for: Callable[..., MegatronEngine]) -> MegatronEngine:
    """Slot 0 after STEPS steps."""
    engine = engine_for(request.param)
    randomize(engine, 0, SHAPE, seed=1)
    _train(engine, 0, range(STEPS))
    return engine


def _resume(engine: MegatronEngine, image: SlotImage) -> SlotImage:
    """One more step from `image` in slot 3."""
    engine.restore(3, image)
    _train(engine, 3, range(STEPS, STEPS + 1))
    return engine.capture(3, moments=True)


def _equal(left: SlotImage, right: SlotImage) -> bool:
    return left.step == right.step and all(
        same(getattr(left, field), getattr(right, field)) for field in ("weights", "exp_avg", "exp_avg_sq")
    )


def _rounded(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.bfloat16().float() for name, value in values.items()}


def _largest(left: SlotImage, right: SlotImage, fields: tuple[str, ...]) -> float:
    return max(
        float((getattr(left, field)[name] - value).abs().max())
        for field in fields
        for name, value in getattr(right, field).items()
    )


def test_resume_in_another_slot_is_bitwise_the_uninterrupted_run_CKPT_07(
    trained: MegatronEngine, measured: Measurements
) -> None:
    image = trained.capture(0, moments=True)
    _train(trained, 0, range(STEPS, STEPS + 1))
    uninterrupted = trained.capture(0, moments=True)
    assert uninterrupted.step == STEPS + 1
    resumed = _resume(trained, image)
    assert _equal(resumed, uninterrupted)
    controls = {
        "weights_only": SlotImage(image.layout, image.weights),
        "masters_through_bfloat16": replace(image, weights=_rounded(image.weights)),
        "moments_through_bfloat16": replace(image, exp_avg=_rounded(image.exp_avg)),
        "clock_reset": replace(image, step=0),
    }
    damaged = {name: _resume(trained, control) for name, control in controls.items()}
    measured(
        Claim.RESUME,
        f"engine, tiny {trained.config.model_dir.name}: weights and moments",
        _largest(resumed, uninterrupted, ("weights", "exp_avg", "exp_avg_sq")),
        within=0.0,
        **{name: _largest(end, uninterrupted, ("weights",)) for name, end in damaged.items()},
    )


def test_image_is_a_copy_that_later_steps_do_not_touch(trained: MegatronEngine) -> None:
    image = trained.capture(0, moments=True)
    kept = {name: value.clone() for name, value in image.weights.items()}
    _train(trained, 0, range(5, 6))
    assert same(image.weights, kept)
    assert not same(trained.capture(0, moments=True).weights, kept)


def test_weights_only_starts_adam_fresh_CKPT_09(trained: MegatronEngine) -> None:
    trained.restore(3, SlotImage(SHAPE, trained.capture(0, moments=False).weights, step=7))
    restored = trained.capture(3, moments=True)
    assert restored.step == 0
    assert same(restored.weights, trained.capture(0, moments=False).weights)
    assert not any(value.any() for value in (*restored.exp_avg.values(), *restored.exp_avg_sq.values()))


def test_pending_window_is_not_captured_and_loading_clears_it_CKPT_10(trained: MegatronEngine) -> None:
    trained.run_pass(on_slot(0, supervised(9, 20)), CROSS_ENTROPY, backward=True)
    image = trained.capture(0, moments=True)
    assert trained.window_open(0)
    trained.restore(3, image)
    assert not trained.window_open(3)
    assert trained.optim_steps([(3, ADAM)])[3].metrics["grad_norm"] == 0.0
    trained.restore(0, image)
    assert not trained.window_open(0)


def test_names_and_shapes_carry_no_slot_number_CKPT_05(trained: MegatronEngine) -> None:
    image = trained.capture(0, moments=True)
    shapes = {name: tuple(value.shape) for name, value in image.weights.items()}
    assert shapes == trained.expected_shapes(SHAPE)
    assert list(shapes) == list(trained.expected_shapes(SHAPE))
    trained.restore(3, image)
    assert _equal(trained.capture(3, moments=True), image)
    assert set(image.exp_avg) == set(image.exp_avg_sq) == set(image.weights)
    assert all(value.dtype == torch.float32 for value in image.weights.values())


def test_the_adapter_really_trains(trained: MegatronEngine) -> None:
    items = on_slot(0, supervised(0, 20))
    before = trained.run_pass(items, Loss("cross_entropy", {}), backward=False)[0].loss
    for _ in range(4):
        trained.run_pass(items, CROSS_ENTROPY, backward=True)
        trained.optim_steps([(0, ADAM)])
    assert trained.run_pass(items, CROSS_ENTROPY, backward=False)[0].loss < before


def test_images_taken_together_hold_each_its_own_slot_SNAP_07(trained: MegatronEngine) -> None:
    randomize(trained, 1, layout(3), seed=2)
    alone = [trained.capture(slot, moments=True) for slot in (0, 1)]
    # Taken in one go, looked at only after both slots have moved on.
    together = [trained.capture(slot, moments=True) for slot in (0, 1)]
    for slot in (0, 1):
        _train(trained, slot, range(7, 8))
    assert [image.layout.rank for image in together] == [6, 3]
    assert all(_equal(left, right) for left, right in zip(together, alone, strict=True))
    assert not same(together[0].weights, together[1].weights)
