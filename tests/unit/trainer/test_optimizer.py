"""OPT-02..05: one AdamW per slot with the request's own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from services.trainer.engine import Adam, SlotDatum
from services.trainer.megatron.engine import MegatronEngine
from tests.unit.trainer.rig import (
    ADAM,
    ALL,
    CROSS_ENTROPY,
    layout,
    on_slot,
    randomize,
    relative,
    same,
    scaled,
    supervised,
)

SCHEDULE = [
    Adam(1e-2, 0.9, 0.95, 1e-8, 0.0, 0.0),
    Adam(5e-3, 0.9, 0.95, 1e-8, 0.1, 0.0),
    Adam(2e-2, 0.8, 0.99, 1e-12, 0.1, 1.0),
    Adam(1e-3, 0.9, 0.999, 1e-6, 0.0, 5.0),
]


def test_trajectory_equals_torch_adamw_OPT_03(engine: MegatronEngine) -> None:
    """Five steps whose learning rate, betas, eps, weight decay and clip change with every request."""
    image = randomize(engine, 0, ALL, seed=1)
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in image.weights.items()}
    reference = torch.optim.AdamW(parameters.values(), lr=1.0, foreach=False)
    for number, adam in enumerate([*SCHEDULE, SCHEDULE[0]]):
        engine.run_pass(on_slot(0, supervised(number, 25)), CROSS_ENTROPY, backward=True)
        for name, gradient in engine.window_gradients(0).items():
            parameters[name].grad = gradient.clone()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters.values()])
        if adam.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters.values(), adam.grad_clip_norm, foreach=False)
        reference.param_groups[0].update(
            lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay
        )
        reference.step()
        metrics = engine.optim_steps([(0, adam)])[0].metrics
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
    after = engine.capture(0, moments=True)
    assert after.step == 5
    for name, parameter in parameters.items():
        assert relative(after.weights[name], parameter.detach()) <= 1e-6
        assert relative(after.exp_avg[name], reference.state[parameter]["exp_avg"]) <= 1e-6
        assert relative(after.exp_avg_sq[name], reference.state[parameter]["exp_avg_sq"]) <= 1e-6
    assert relative(after.weights[name], image.weights[name]) > 1e-3


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_non_finite_gradient_skips_that_slot_only_OPT_04_FAIL_11(engine: MegatronEngine, poison: float) -> None:
    for slot in (0, 1):
        randomize(engine, slot, ALL, seed=slot)
        engine.run_pass(on_slot(slot, supervised(slot, 20)), CROSS_ENTROPY, backward=True)
    engine.optim_steps([(0, ADAM)])
    before = [engine.slot_digest(slot) for slot in (0, 1)]
    engine.run_pass(on_slot(0, supervised(3, 20)), CROSS_ENTROPY, backward=True)
    window = engine.slots.get(0).window
    assert window is not None
    window.tensor[17] = poison
    outcome = engine.optim_steps([(0, ADAM), (1, ADAM)])
    assert dict(outcome[0].metrics) == {"skipped_nonfinite": 1.0}
    assert set(outcome[1].metrics) == {"grad_norm"}
    assert engine.slot_digest(0) == before[0]
    assert engine.slot_digest(1) != before[1]
    assert not engine.window_open(0)
    engine.run_pass(on_slot(0, supervised(4, 20)), CROSS_ENTROPY, backward=True)
    assert all(value.isfinite().all() for value in engine.window_gradients(0).values())
    assert "grad_norm" in engine.optim_steps([(0, ADAM)])[0].metrics


def test_discarding_a_window_is_what_a_skipped_step_does_ADD_05(engine: MegatronEngine) -> None:
    """Bitwise: weights, moments, clock, and what the next pass adds up."""
    digests = []
    for slot, poison in ((0, True), (1, False)):
        randomize(engine, slot, ALL, seed=5)
        engine.run_pass(on_slot(slot, supervised(1, 20)), CROSS_ENTROPY, backward=True)
        engine.optim_steps([(slot, ADAM)])
        engine.run_pass(on_slot(slot, supervised(3, 20)), CROSS_ENTROPY, backward=True)
        if poison:
            engine.slots.get(slot).window.tensor[17] = float("nan")  # type: ignore[union-attr]
            engine.optim_steps([(slot, ADAM)])
        else:
            engine.discard_window(slot)
        assert not engine.window_open(slot)
        engine.run_pass(on_slot(slot, supervised(4, 20)), CROSS_ENTROPY, backward=True)
        engine.optim_steps([(slot, ADAM)])
        digests.append(engine.slot_digest(slot))
    assert digests[0] == digests[1]


def test_huge_but_finite_gradient_is_not_taken_for_an_overflow(engine: MegatronEngine) -> None:
    randomize(engine, 0, ALL, seed=1)
    engine.run_pass(on_slot(0, scaled(supervised(1, 20), 1e20)), CROSS_ENTROPY, backward=True)
    metrics = engine.optim_steps([(0, replace(ADAM, grad_clip_norm=1.0))])[0].metrics
    assert math.isfinite(metrics["grad_norm"])
    assert metrics["grad_norm"] > 1e19
    assert all(torch.isfinite(value).all() for value in engine.capture(0, moments=True).weights.values())


def test_clip_uses_the_slots_own_norm_OPT_05(engine_for: Callable[..., MegatronEngine]) -> None:
    """A loud neighbour in the same merged step does not scale a quiet slot's gradient."""
    clipping = replace(ADAM, grad_clip_norm=1.0)
    outcomes = []
    for loud in (True, False):
        engine = engine_for("qwen3")
        randomize(engine, 0, layout(4), seed=1)
        randomize(engine, 1, layout(8), seed=2)
        items = on_slot(0, scaled(supervised(1, 20), 1e-4)) + (
            on_slot(1, scaled(supervised(2, 20), 1e3)) if loud else []
        )
        engine.run_pass(items, CROSS_ENTROPY, backward=True)
        steps = [(0, clipping), (1, clipping)] if loud else [(0, clipping)]
        metrics = engine.optim_steps(steps)
        outcomes.append((engine.capture(0, moments=True), metrics[0].metrics["grad_norm"]))
        if loud:
            assert metrics[1].metrics["grad_norm"] > 1e3
            clipped = engine.capture(1, moments=True).exp_avg
            total = math.sqrt(sum(float(value.double().square().sum()) for value in clipped.values()))
            assert total == pytest.approx(0.1 * 1.0, rel=1e-4)
    (packed, packed_norm), (alone, norm) = outcomes
    assert norm < 1.0
    assert packed_norm == pytest.approx(norm, rel=1e-6)
    for name, value in alone.exp_avg.items():
        assert relative(packed.exp_avg[name], value) <= 1e-5


def test_new_tenant_inherits_nothing_OPT_02(engine_for: Callable[..., MegatronEngine]) -> None:
    used, fresh = engine_for("qwen3"), engine_for("qwen3")
    used.init_slot(0, ALL, seed=1)
    for number in range(5):
        used.run_pass(on_slot(0, supervised(number, 20)), CROSS_ENTROPY, backward=True)
        used.optim_steps([(0, ADAM)])
    used.run_pass(on_slot(0, supervised(9, 20)), CROSS_ENTROPY, backward=True)
    rows = used.slots.get(0)
    used.init_slot(1, ALL, seed=9)
    used.clear_slot(0)
    assert not used.window_open(0)
    assert not any(flat.tensor.any() for flat in (rows.weights, *rows.buffers))
    for engine in (used, fresh):
        engine.init_slot(0, ALL, seed=2)
        engine.run_pass(on_slot(0, supervised(7, 20)), CROSS_ENTROPY, backward=True)
        engine.optim_steps([(0, ADAM)])
    assert used.slot_digest(0) == fresh.slot_digest(0)


def test_seed_decides_the_start_and_b_is_zero(engine: MegatronEngine) -> None:
    starts = []
    for slot, seed in ((0, 1), (1, 1), (2, 2)):
        engine.init_slot(slot, layout(8), seed=seed)
        starts.append(engine.capture(slot, moments=False).weights)
    assert same(starts[0], starts[1])
    assert not same(starts[0], starts[2])
    for name, value in starts[0].items():
        if name.endswith("lora_B.weight"):
            assert not value.any()
        else:
            bound = 1 / math.sqrt(value.shape[1])
            assert float(value.abs().max()) <= bound
            assert float(value.std()) == pytest.approx(bound / math.sqrt(3), rel=0.2)


def test_step_without_a_window_uses_zero_gradients(engine: MegatronEngine) -> None:
    image = randomize(engine, 0, ALL, seed=1)
    metrics = engine.optim_steps([(0, replace(ADAM, weight_decay=0.0))])[0].metrics
    assert metrics["grad_norm"] == 0.0
    after = engine.capture(0, moments=True)
    assert after.step == 1
    assert same(after.weights, image.weights)


def test_learning_rate_scales_the_update_OPT_03(engine: MegatronEngine) -> None:
    image = randomize(engine, 0, ALL, seed=1)
    updates = []
    for rate in (1e-3, 2e-3):
        engine.restore(0, image)
        engine.run_pass([SlotDatum(0, supervised(1, 20))], CROSS_ENTROPY, backward=True)
        engine.optim_steps([(0, replace(ADAM, learning_rate=rate, weight_decay=0.0))])
        after = engine.capture(0, moments=False).weights
        updates.append(torch.cat([(after[name] - image.weights[name]).flatten() for name in after]))
    assert relative(updates[1], 2 * updates[0]) <= 1e-3
