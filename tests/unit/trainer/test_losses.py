"""LOSS-01..06, 15: the objectives against hand-computed values and finite differences."""

from __future__ import annotations

import math

import pytest
import torch

from services.common.errors import InvalidInput
from services.trainer.losses import LOSSES, OBJECTIVES, position_losses
from tests.evidence.table import Claim, Measurements

# Ratios below, inside and above the default bounds of ppo, with both signs of A.
RATIOS = torch.tensor([0.5, 0.5, 1.0, 1.1, 1.5, 1.5, 6.0, 6.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([2.0, -1.0, 0.5, -3.0, 1.0, -2.0, 1.5, -0.5], dtype=torch.float64)
LP = torch.tensor([-0.1, -0.7, -1.3, -2.0, -0.4, -3.0, -1.1, -0.9], dtype=torch.float64)
POLICY = {"logprobs": LP - RATIOS.log(), "advantages": ADVANTAGES}
WEIGHTS = {"weights": torch.tensor([1.0, -0.5, 0.0, 2.0, 0.25, 1.0, 1.0, 3.0], dtype=torch.float64)}


def _clip(value: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.tensor([min(max(float(v), low), high) for v in value], dtype=torch.float64)


def _ppo(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    loss, gradient = [], []
    for r, a in zip(RATIOS.tolist(), ADVANTAGES.tolist(), strict=True):
        clipped = min(max(r, low), high)
        loss.append(-min(r * a, clipped * a))
        gradient.append(-r * a if r * a < clipped * a or low <= r <= high else 0.0)
    return torch.tensor(loss, dtype=torch.float64), torch.tensor(gradient, dtype=torch.float64)


def _cispo(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    clipped = _clip(RATIOS, low, high)
    return -clipped * LP * ADVANTAGES, -clipped * ADVANTAGES


def _dro(beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    gap = RATIOS.log()
    return -(LP * ADVANTAGES - 0.5 * beta * gap**2), -(ADVANTAGES - beta * gap)


CASES = {
    "cross_entropy": ("cross_entropy", {}, (-WEIGHTS["weights"] * LP, -WEIGHTS["weights"])),
    "importance_sampling": ("importance_sampling", {}, (-RATIOS * ADVANTAGES, -RATIOS * ADVANTAGES)),
    "ppo": ("ppo", {}, _ppo(0.8, 1.2)),
    "ppo-wide": ("ppo", {"clip_low_threshold": 0.4, "clip_high_threshold": 5.0}, _ppo(0.4, 5.0)),
    "cispo": ("cispo", {}, _cispo(0.0, 4.0)),
    "cispo-narrow": ("cispo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}, _cispo(0.8, 1.2)),
    "dro": ("dro", {}, _dro(0.05)),
    "dro-strong": ("dro", {"beta": 1.5}, _dro(1.5)),
}


def _fields(name: str) -> dict[str, torch.Tensor]:
    return WEIGHTS if name == "cross_entropy" else POLICY


def _gap(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max())


def _value_and_gradient(case: str, factor: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [8] each; `factor` scales advantages or weights."""
    name, config, _ = CASES[case]
    fields = {key: value * factor if key != "logprobs" else value for key, value in _fields(name).items()}
    lp = LP.clone().requires_grad_()
    losses = position_losses(name, lp, fields, config)
    (gradient,) = torch.autograd.grad(losses.sum(), lp)
    return losses.detach(), gradient


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_equal_the_closed_form_LOSS_01_LOSS_02_LOSS_03_LOSS_04_LOSS_05(
    case: str, measured: Measurements
) -> None:
    _, _, (loss, gradient) = CASES[case]
    actual, actual_gradient = _value_and_gradient(case)
    off, off_gradient = _value_and_gradient(case, 1.001)
    measured(Claim.LOSS, case, _gap(actual, loss), within=1e-12, weights_off_by_a_thousandth=_gap(off, loss))
    measured(
        Claim.LOSS_GRADIENT,
        case,
        _gap(actual_gradient, gradient),
        within=1e-12,
        weights_off_by_a_thousandth=_gap(off_gradient, gradient),
    )
    assert loss.abs().sum() > 0


def _central_differences(case: str, step: float = 1e-6) -> torch.Tensor:
    """Of the value; cispo's gradient is by definition not that of its value, so there the ratio is held."""
    name, config, _ = CASES[case]
    if name == "cispo":
        bounds = {**OBJECTIVES["cispo"].defaults, **config}
        held = _clip(RATIOS, bounds["clip_low_threshold"], bounds["clip_high_threshold"])
        return ((-held * (LP + step) * ADVANTAGES) - (-held * (LP - step) * ADVANTAGES)) / (2 * step)
    up, down = (position_losses(name, LP + sign * step, _fields(name), config) for sign in (1, -1))
    return (up - down) / (2 * step)


@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_finite_differences_LOSS_01_LOSS_02_LOSS_03_LOSS_04_LOSS_05(
    case: str, measured: Measurements
) -> None:
    differences = _central_differences(case)
    _, gradient = _value_and_gradient(case)
    _, off = _value_and_gradient(case, 1.001)
    gap, control = _gap(gradient, differences), _gap(off, differences)
    measured(Claim.FINITE_DIFFERENCES, case, gap, within=1e-6, weights_off_by_a_thousandth=control)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
@pytest.mark.parametrize("q", [-99999.0, 0.0, 88.0, float("-inf"), float("nan")])
def test_zero_advantage_contributes_nothing_whatever_q_is_LOSS_15(name: str, q: float) -> None:
    lp = torch.tensor([-3.0, -1.0], requires_grad=True)
    fields = {"logprobs": torch.tensor([q, -1.1]), "advantages": torch.tensor([0.0, 1.0])}
    losses = position_losses(name, lp, fields, {})
    (gradient,) = torch.autograd.grad(losses.sum(), lp)
    alone = position_losses(name, lp[1:], {key: value[1:] for key, value in fields.items()}, {})
    assert losses[0] == 0
    assert gradient[0] == 0
    assert torch.equal(losses[1:], alone)
    assert math.isfinite(float(gradient[1]))
    assert float(gradient[1]) != 0


def test_clipped_overflowing_ratio_has_zero_gradient_LOSS_03() -> None:
    lp = torch.tensor([-1.0], requires_grad=True)
    fields = {"logprobs": torch.tensor([-99999.0]), "advantages": torch.tensor([1.0])}
    loss = position_losses("ppo", lp, fields, {})
    (gradient,) = torch.autograd.grad(loss.sum(), lp)
    assert float(loss) == pytest.approx(-1.2)
    assert float(gradient) == 0


def test_zero_weight_selects_away_a_broken_logprob() -> None:
    lp = torch.tensor([float("nan"), -1.0], requires_grad=True)
    losses = position_losses("cross_entropy", lp, {"weights": torch.tensor([0.0, 2.0])}, {})
    (gradient,) = torch.autograd.grad(losses.sum(), lp)
    assert losses.tolist() == [0.0, 2.0]
    assert gradient.tolist() == [0.0, -2.0]


def test_defaults_are_those_of_the_protocol() -> None:
    assert OBJECTIVES["ppo"].defaults == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert OBJECTIVES["cispo"].defaults == {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}
    assert OBJECTIVES["dro"].defaults == {"beta": 0.05}
    assert OBJECTIVES["gspo"].defaults == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert OBJECTIVES["stable_reinforce"].defaults == {"kl_coeff": 0.05}
    assert LOSSES == ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce")


def test_unknown_loss_key_or_field_is_refused_by_name() -> None:
    lp = torch.zeros(1)
    with pytest.raises(InvalidInput, match="loss_fn: 'focal'"):
        position_losses("focal", lp, {}, {})
    with pytest.raises(InvalidInput, match="loss_fn_config.beta"):
        position_losses("ppo", lp, POLICY, {"beta": 1.0})
    with pytest.raises(InvalidInput, match="loss_fn_inputs.weights"):
        position_losses("cross_entropy", lp, {}, {})
