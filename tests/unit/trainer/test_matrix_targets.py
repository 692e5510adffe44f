"""(N, K) targets: the output head and the engine against float64 closed forms (API-11, LOSS-01, LOSS-02)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import Loss
from services.trainer.losses import position_losses
from services.trainer.megatron.engine import MegatronEngine
from services.trainer.megatron.logprob import OutputHead, Scores
from tests.unit.trainer.rig import ALL, CROSS_ENTROPY, on_slot, randomize, supervised

T, H, V = 7, 16, 64
TOLERANCE = 1e-5


def _tensors(width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """hidden, weight, targets (a row may name a token twice), fields of both losses."""
    draw = torch.Generator().manual_seed(width)
    hidden, weight = torch.randn(T, H, generator=draw), torch.randn(V, H, generator=draw)
    targets = torch.randint(0, V, (T, width), generator=draw)
    targets[0] = targets[0, 0]
    values = {name: torch.randn(T, width, generator=draw) for name in ("weights", "logprobs", "advantages")}
    values["logprobs"] = -values["logprobs"].abs() - 3
    values["weights"][2] = 0.0
    return hidden, weight, targets, values


def _closed_form(
    loss: str, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, fields: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """logprobs [T, K] and the summed loss in float64, written without the product's code."""
    lp = (hidden.double() @ weight.double().T).log_softmax(-1).gather(-1, targets)
    if loss == "cross_entropy":
        return lp, -(fields["weights"].double() * lp).sum()
    ratio = (lp - fields["logprobs"].double()).exp()
    return lp, -(ratio * fields["advantages"].double()).sum()


def _head(
    engine: MegatronEngine,
    loss: str,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    fields: dict[str, torch.Tensor],
) -> Scores:
    needed = {"cross_entropy": ("weights",), "importance_sampling": ("logprobs", "advantages")}[loss]

    def chunk_loss(logprobs: torch.Tensor, rows: slice) -> torch.Tensor:
        return position_losses(loss, logprobs, {name: fields[name][rows] for name in needed}, {})

    with torch.no_grad():
        head = OutputHead(weight, engine.runtime, logits_memory_bytes=1)
        return head.score(hidden, targets, [], chunk_loss, backward=True)


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling"])
@pytest.mark.parametrize("width", [1, 2, 9])
def test_head_equals_the_float64_closed_form(engine: MegatronEngine, loss: str, width: int) -> None:
    hidden, weight, targets, fields = _tensors(width)
    scores = _head(engine, loss, hidden, weight, targets, fields)
    wide = hidden.double().requires_grad_()
    lp, total = _closed_form(loss, wide, weight, targets, fields)
    (gradient,) = torch.autograd.grad(total, wide)
    assert scores.dhidden is not None
    assert float((scores.logprobs - lp.detach()).abs().max()) < TOLERANCE
    assert float(scores.losses.sum()) == pytest.approx(float(total.detach()), rel=1e-5)
    assert float((scores.dhidden - gradient).norm() / gradient.norm()) < TOLERANCE
    # Negative control: with its targets in another order per row the comparison fails.
    if width > 1:
        turned = _head(engine, loss, hidden, weight, targets.roll(1, dims=1), fields)
        assert turned.dhidden is not None
        assert float((turned.dhidden - gradient).norm() / gradient.norm()) > 1e-2


@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling"])
def test_closed_form_equals_finite_differences(loss: str) -> None:
    hidden, weight, targets, fields = _tensors(3)
    assert torch.autograd.gradcheck(
        lambda x: _closed_form(loss, x, weight, targets, fields)[1], (hidden.double().requires_grad_(),)
    )


def test_a_second_target_of_weight_zero_changes_nothing(engine: MegatronEngine) -> None:
    randomize(engine, 0, ALL, seed=3)
    randomize(engine, 1, ALL, seed=3)
    one = supervised(5, 20)
    wide = Datum(
        one.tokens, np.repeat(one.targets, 2, axis=1), {"weights": np.repeat(one.fields["weights"], 2, axis=1)}
    )
    wide.fields["weights"][:, 1] = 0.0
    (plain,) = engine.run_pass(on_slot(0, one), CROSS_ENTROPY, backward=True)
    (padded,) = engine.run_pass(on_slot(1, wide), CROSS_ENTROPY, backward=True)
    assert np.array_equal(plain.logprobs[:, 0], padded.logprobs[:, 0])
    # The zeros between its terms: with wide vectors the same sum is added in another order.
    assert plain.loss == pytest.approx(padded.loss, rel=3e-7)
    left, right = engine.window_gradients(0), engine.window_gradients(1)
    assert max(float((left[n] - right[n]).norm() / (left[n].norm() + 1e-12)) for n in left) < 1e-6


@pytest.mark.parametrize("backward", [True, False])
def test_forward_only_of_matrix_targets_moves_no_gradient_LOSS_07(engine: MegatronEngine, backward: bool) -> None:
    randomize(engine, 0, ALL, seed=4)
    engine.run_pass(on_slot(0, supervised(1, 9)), CROSS_ENTROPY, backward=True)
    before = engine.slot_digest(0)
    engine.run_pass(on_slot(0, supervised(2, 12, width=5)), CROSS_ENTROPY, backward=backward)
    assert (engine.slot_digest(0) == before) is not backward


def test_top_k_distillation_moves_the_student_to_the_teacher(engine_for: Callable[..., MegatronEngine]) -> None:
    """Cross-entropy over the teacher's k likeliest tokens, weighted by their probabilities."""
    from services.trainer.engine import Adam

    engine, top = engine_for("qwen3"), 8
    randomize(engine, 0, ALL, seed=20, scale=0.4)  # the teacher
    engine.init_slot(1, ALL, 21)
    tokens = supervised(7, 24).tokens
    every = np.tile(np.arange(512, dtype=np.int32), (24, 1))
    ask = Datum(tokens, every, {"weights": np.zeros(every.shape, np.float32)})

    def scores(slot: int) -> np.ndarray:
        return engine.run_pass(on_slot(slot, ask), CROSS_ENTROPY, backward=False)[0].logprobs.astype(np.float64)

    teacher = scores(0)
    best = np.argsort(-teacher, axis=1)[:, :top].astype(np.int32)
    weights = np.exp(np.take_along_axis(teacher, best, axis=1)).astype(np.float32)
    lesson = Datum(tokens, best, {"weights": weights})

    def distance() -> float:
        return float((np.exp(teacher) * (teacher - scores(1))).sum())

    before = distance()
    losses = []
    for _ in range(8):
        losses.append(engine.run_pass(on_slot(1, lesson), Loss("cross_entropy", {}), backward=True)[0].loss)
        engine.optim_steps([(1, Adam(1e-2, 0.9, 0.95, 1e-8, 0.0, 0.0))])
    assert losses[-1] < losses[0]
    assert distance() < 0.7 * before


@pytest.mark.parametrize("width", [1, 3])
def test_huge_logits_in_low_precision_without_weight_give_zero_and_stay_finite_LOSS_09(
    engine: MegatronEngine, width: int
) -> None:
    """A sum in bfloat16 would overflow, and inf times the zero weight be NaN."""
    hidden, weight, targets, fields = _tensors(width)
    big, fields["weights"] = torch.bfloat16, torch.zeros_like(fields["weights"])
    scores = _head(engine, "cross_entropy", (hidden * 1e18).to(big), (weight * 1e18).to(big), targets, fields)
    assert scores.losses.tolist() == torch.zeros(T, width).tolist()
    assert bool(torch.isfinite(scores.logprobs).all())
    assert scores.dhidden is not None
    assert not scores.dhidden.any()
