"""gspo and stable_reinforce: closed forms, finite differences with what is held constant held, and the engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from services.trainer.engine import Loss
from services.trainer.losses import position_losses
from services.trainer.megatron.engine import MegatronEngine
from tests.evidence.table import Claim, Measurements
from tests.unit.trainer.rig import ALL, CROSS_ENTROPY, on_slot, policy, randomize, supervised, worst

GSPO = Loss("gspo", {})
LP = torch.tensor([-0.2, -1.4, -0.9, -2.5, -0.6], dtype=torch.float64)
Q = torch.tensor([-0.5, -1.3, -99999.0, -2.7, -0.4], dtype=torch.float64)
MASK = torch.tensor([1.0, 2.0, 0.0, -1.0, 1.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.5, -0.5, 0.0, 2.0, -1.0], dtype=torch.float64)
FIELDS = {"logprobs": Q, "advantages": ADVANTAGES, "sequence_ratio_mask": MASK}
INSIDE = (0.3 - 0.1 + 0.2 - 0.2) / 4  # mean of lp - q over the four positions whose mask is not 0

# shift of every q -> the ratio lies inside the bounds, above them, below them
SHIFTS = {"inside": 0.0, "above": -0.5, "below": 0.6}


def _closed_form(shift: float, low: float, high: float) -> tuple[list[float], list[float]]:
    s = math.exp(INSIDE - shift)
    losses, gradients = [], []
    for a in ADVANTAGES.tolist():
        clipped = min(max(s, low), high)
        losses.append(-min(s * a, clipped * a))
        gradients.append(-s * a if s * a <= clipped * a else 0.0)
    return losses, gradients


def _fields(shift: float) -> dict[str, torch.Tensor]:
    return {**FIELDS, "logprobs": Q + shift}


def _gap(actual: torch.Tensor, expected: list[float]) -> float:
    return float((actual - torch.tensor(expected, dtype=torch.float64)).abs().max())


def _both(
    name: str, lp: torch.Tensor, fields: dict[str, torch.Tensor], config: dict[str, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses, their gradient)."""
    start = lp.detach().clone().requires_grad_()
    losses = position_losses(name, start, fields, config)
    (gradient,) = torch.autograd.grad(losses.sum(), start)
    return losses.detach(), gradient


@pytest.mark.parametrize("case", SHIFTS)
@pytest.mark.parametrize("bounds", [None, (0.95, 1.01)])
def test_gspo_equals_its_closed_form(case: str, bounds: tuple[float, float] | None, measured: Measurements) -> None:
    config = {} if bounds is None else {"clip_low_threshold": bounds[0], "clip_high_threshold": bounds[1]}
    lp = LP.clone().requires_grad_()
    losses = position_losses("gspo", lp, _fields(SHIFTS[case]), config)
    (gradient,) = torch.autograd.grad(losses.sum(), lp)
    expected, slopes = _closed_form(SHIFTS[case], *(bounds or (0.8, 1.2)))
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12)
    assert losses[2] == gradient[2] == 0
    off = _both("gspo", LP, {**_fields(SHIFTS[case]), "advantages": ADVANTAGES * 1.001}, config)
    subject = f"gspo, ratio {case}, bounds {bounds or 'of the protocol'}"
    for claim, actual, other, exact in (
        (Claim.LOSS, losses, off[0], expected),
        (Claim.LOSS_GRADIENT, gradient, off[1], slopes),
    ):
        measured(claim, subject, _gap(actual, exact), within=1e-12, weights_off_by_a_thousandth=_gap(other, exact))


@pytest.mark.parametrize("case", SHIFTS)
def test_gspo_gradient_equals_finite_differences_with_the_sequence_ratio_held(
    case: str, measured: Measurements
) -> None:
    fields = _fields(SHIFTS[case])
    counted = fields["sequence_ratio_mask"] != 0
    held = (LP - fields["logprobs"])[counted].mean()

    def surrogate(lp: torch.Tensor) -> torch.Tensor:
        ratio = (held + lp - LP).exp()
        return -torch.minimum(ratio * ADVANTAGES, ratio.clamp(0.8, 1.2) * ADVANTAGES).sum()

    lp = LP.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(position_losses("gspo", lp, fields, {}).sum(), lp)
    nudges = 1e-6 * torch.eye(len(LP), dtype=torch.float64)
    slopes = [float(surrogate(LP + nudge) - surrogate(LP - nudge)) / 2e-6 for nudge in nudges]
    off = _both("gspo", LP, {**fields, "advantages": ADVANTAGES * 1.001}, {})[1]
    measured(
        Claim.FINITE_DIFFERENCES,
        f"gspo, ratio {case}",
        _gap(gradient, slopes),
        within=1e-6,
        weights_off_by_a_thousandth=_gap(off, slopes),
    )


def test_gspo_control_a_ratio_that_is_not_held_has_another_gradient() -> None:
    """Negative control: the stop-gradient matters, and the comparison notices."""
    lp = LP.clone().requires_grad_()
    s = (lp - Q)[MASK != 0].mean().exp()
    (free,) = torch.autograd.grad(-(s * ADVANTAGES).sum(), lp)
    (ours,) = torch.autograd.grad(position_losses("gspo", lp, FIELDS, {}).sum(), lp)
    assert float((free - ours).norm()) > 0.1 * float(ours.norm())


@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_gspo_without_any_counted_position_has_ratio_one(advantage: float) -> None:
    fields = {
        "logprobs": torch.tensor([-99999.0, float("nan")]),
        "advantages": torch.full((2,), advantage),
        "sequence_ratio_mask": torch.zeros(2),
    }
    assert position_losses("gspo", torch.tensor([-1.0, -2.0]), fields, {}).tolist() == [-advantage, -advantage]


# ---- stable_reinforce --------------------------------------------------------------------------

TEMPERATURE = 0.7
LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
TOKENS = torch.tensor([[0], [2], [1]])


def _recorded() -> tuple[torch.Tensor, torch.Tensor]:
    """(q at temperature 0.7, the same untempered) of three sampled tokens."""
    tempered = (LOGITS / TEMPERATURE).log_softmax(-1).gather(1, TOKENS)[:, 0]
    return tempered, LOGITS.log_softmax(-1).gather(1, TOKENS)[:, 0]


def _stable(lp: torch.Tensor, config: dict[str, float]) -> torch.Tensor:
    q, raw = _recorded()
    nothing = torch.tensor([float("nan")], dtype=torch.float64)
    fields = {
        "logprobs": torch.cat((nothing, q)),
        "raw_logprobs": torch.cat((nothing, raw)),
        "advantages": torch.tensor([0.0, 2.0, -1.0, 1.0], dtype=torch.float64),
    }
    return position_losses("stable_reinforce", lp, fields, config)


def test_stable_reinforce_at_a_temperature_equals_hand_computed_values_ADD_07(measured: Measurements) -> None:
    """r uses the tempered q, the KL term the untempered one; r is cut off at 2 and held."""
    lp = torch.tensor([-7.0, -0.5, -2.0, -0.25], dtype=torch.float64, requires_grad=True)
    losses = _stable(lp, {"kl_coeff": 0.3})
    (gradient,) = torch.autograd.grad(losses.sum(), lp)
    q, raw = (value.tolist() for value in _recorded())
    expected, slopes = [0.0], [0.0]
    for x, a, tempered, plain in zip((-0.5, -2.0, -0.25), (2.0, -1.0, 1.0), q, raw, strict=True):
        r = min(math.exp(x - tempered), 2.0)
        expected.append(-r * a * x + 0.5 * 0.3 * (x - plain) ** 2)
        slopes.append(-r * a + 0.3 * (x - plain))
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-12)
    assert math.exp(-0.25 - q[2]) > 2  # the last one is cut off
    other = lp.detach().clone().requires_grad_()
    off = _stable(other, {"kl_coeff": 0.301})
    (off_gradient,) = torch.autograd.grad(off.sum(), other)
    gaps = {Claim.LOSS: (losses, off, expected), Claim.LOSS_GRADIENT: (gradient, off_gradient, slopes)}
    for claim, (actual, wrong, exact) in gaps.items():
        measured(
            claim,
            "stable_reinforce at temperature 0.7",
            _gap(actual, exact),
            within=1e-12,
            kl_coeff_off_by_a_thousandth=_gap(wrong, exact),
        )
    # Negative control: with one q for both terms the values differ.
    mixed = -min(math.exp(-0.5 - raw[0]), 2.0) * 2.0 * -0.5
    assert abs(mixed - (expected[1] - 0.5 * 0.3 * (-0.5 - raw[0]) ** 2)) > 1e-3


def test_stable_reinforce_gradient_equals_finite_differences_with_its_ratio_held(measured: Measurements) -> None:
    start = torch.tensor([-7.0, -0.5, -2.0, -0.25], dtype=torch.float64)
    lp = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_stable(lp, {}).sum(), lp)
    q, raw = _recorded()
    held = (start[1:] - q).exp().clamp(max=2.0)
    advantages = torch.tensor([2.0, -1.0, 1.0], dtype=torch.float64)

    def surrogate(x: torch.Tensor) -> float:
        return float((-held * advantages * x[1:] + 0.025 * (x[1:] - raw).square()).sum())

    nudges = 1e-6 * torch.eye(4, dtype=torch.float64)
    differences = [(surrogate(start + nudge) - surrogate(start - nudge)) / 2e-6 for nudge in nudges]
    (off,) = torch.autograd.grad(_stable(lp, {"kl_coeff": 0.051}).sum(), lp)
    measured(
        Claim.FINITE_DIFFERENCES,
        "stable_reinforce at temperature 0.7",
        _gap(gradient, differences),
        within=1e-6,
        kl_coeff_off_by_a_fiftieth=_gap(off, differences),
    )


def test_stable_reinforce_without_its_kl_term_and_without_an_untempered_q() -> None:
    lp = torch.tensor([-1.0], dtype=torch.float64)
    fields = {
        "logprobs": lp - 0.1,
        "raw_logprobs": torch.full_like(lp, float("nan")),
        "advantages": torch.ones_like(lp),
    }
    (loss,) = position_losses("stable_reinforce", lp, fields, {"kl_coeff": 5.0}).tolist()
    assert loss == pytest.approx(math.exp(0.1))
    q, _ = _recorded()
    plain = _stable(torch.cat((lp, q)), {"kl_coeff": 0.0})
    assert plain.tolist() == pytest.approx([0.0, *(-a * x for a, x in zip((2.0, -1.0, 1.0), q.tolist(), strict=True))])


# ---- the engine --------------------------------------------------------------------------------


def _lessons(engine: MegatronEngine) -> list[Datum]:
    lengths = (21, 6, 33)
    scores = engine.run_pass(
        on_slot(0, *(supervised(i, n) for i, n in enumerate(lengths))), CROSS_ENTROPY, backward=False
    )
    return [policy(i, n, scores[i].logprobs) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("loss", ["gspo", "stable_reinforce"])
def test_packed_datums_do_not_see_each_other_LOSS_06(engine_for: Callable[..., MegatronEngine], loss: str) -> None:
    """Also where a chunk of logits ends in the middle of a datum, and across micro-batches."""
    engine = engine_for("qwen3", micro_batch_tokens=40, logits_memory_bytes=16 * 512 * 4)
    for slot in (0, 1):
        randomize(engine, slot, ALL, seed=8)
    datums = _lessons(engine)
    packed = engine.run_pass(on_slot(0, *datums), Loss(loss, {}), backward=True)
    alone = [engine.run_pass(on_slot(1, datum), Loss(loss, {}), backward=True)[0] for datum in datums]
    for together, single in zip(packed, alone, strict=True):
        assert together.loss == pytest.approx(single.loss, rel=1e-5)
        assert np.allclose(together.logprobs, single.logprobs, atol=1e-5)
    assert worst(engine.window_gradients(0), engine.window_gradients(1)) <= 1e-5


def test_a_datum_whose_own_ratio_is_not_finite_fails_alone_LOSS_15(engine: MegatronEngine) -> None:
    randomize(engine, 0, ALL, seed=10)
    good, other, _ = _lessons(engine)
    q = np.where(other.fields["sequence_ratio_mask"] != 0, -99999.0, other.fields["logprobs"]).astype(np.float32)
    advantages = np.where(other.fields["advantages"] != 0, -1.0, 0.0).astype(np.float32)
    bad = replace(other, fields={**other.fields, "logprobs": q, "advantages": advantages})
    results = engine.run_pass(on_slot(0, good, bad), GSPO, backward=True)
    assert results[0].failure == ""
    assert "not finite" in results[1].failure
