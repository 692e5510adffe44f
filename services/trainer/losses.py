"""The objectives, as pure functions of log-probabilities.

Per position: lp = log-probability of the target under the model being trained, q = `logprobs`
(the sampler's), A = `advantages`, w = `weights`, r = exp(lp - q). Each function returns the
negative contribution of every position; a datum's loss is their plain sum in fp32. Nothing
divides by tokens, sequences or batches. A position with A = 0 (w = 0 for cross_entropy)
contributes exactly zero, whatever q is: selected, never multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from services.common.errors import InvalidInput

Fields = Mapping[str, torch.Tensor]
Config = Mapping[str, float]
PositionLoss = Callable[[torch.Tensor, Fields, Config], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Objective:
    """`fields` are the per-position inputs it reads; `defaults` its configuration."""

    function: PositionLoss
    fields: tuple[str, ...]
    defaults: Config


def position_losses(name: str, logprobs: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    """Loss of every position, float32, of the same shape as `logprobs` [..., K] and the fields.

    Raises InvalidInput for an unknown loss, a missing field or an unknown configuration key.
    """
    objective = find_objective(name)
    for key in config:
        if key not in objective.defaults:
            raise InvalidInput(f"loss_fn_config.{key}: loss {name} does not know it; known: {list(objective.defaults)}")
    for field in objective.fields:
        if field not in fields:
            raise InvalidInput(f"loss_fn_inputs.{field}: loss {name} needs it")
    return objective.function(logprobs, fields, {**objective.defaults, **config})


def find_objective(name: str) -> Objective:
    """Raises InvalidInput for a name that is not in OBJECTIVES."""
    if name not in OBJECTIVES:
        raise InvalidInput(f"loss_fn: {name!r} is not supported; supported are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def _cross_entropy(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    w = fields["weights"]
    return torch.where(w == 0, 0.0, -w * torch.where(w == 0, 0.0, lp))


def _importance_sampling(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    a = fields["advantages"]
    return -_ratio(lp, fields, a != 0) * a


def _ppo(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    a = fields["advantages"]
    ratio = _ratio(lp.detach(), fields, a != 0)
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"]) * a
    # Equal terms (r within the bounds) count as unclipped. The ratio is formed again only where
    # it is selected: an overflowing but clipped one would turn its zero gradient into NaN.
    unclipped = ratio * a <= clipped
    return -torch.where(unclipped, _ratio(lp, fields, (a != 0) & unclipped) * a, clipped)


def _cispo(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    a = fields["advantages"]
    ratio = _ratio(lp.detach(), fields, a != 0)
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -clipped * a * torch.where(a == 0, 0.0, lp)


def _dro(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    return -(lp * fields["advantages"] - 0.5 * config["beta"] * (lp - fields["logprobs"]).square())


def _ratio(lp: torch.Tensor, fields: Fields, active: torch.Tensor) -> torch.Tensor:
    """exp(lp - q) where `active`, else 1 without a gradient."""
    return torch.where(active, lp - fields["logprobs"], 0.0).exp()


_POLICY = ("logprobs", "advantages")

OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": Objective(_cross_entropy, ("weights",), {}),
    "importance_sampling": Objective(_importance_sampling, _POLICY, {}),
    "ppo": Objective(_ppo, _POLICY, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": Objective(_cispo, _POLICY, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": Objective(_dro, _POLICY, {"beta": 0.05}),
}

LOSSES: tuple[str, ...] = tuple(OBJECTIVES)
