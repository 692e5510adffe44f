"""The objectives, as pure functions of log-probabilities.

Per position: lp = log-probability of the target under the model being trained, q = `logprobs`
(the sampler's), A = `advantages`, w = `weights`, r = exp(lp - q). Each function returns the
negative contribution of every position; a datum's loss is their plain sum in fp32. Nothing
divides by tokens, sequences or batches. Where A = 0 (w = 0 for cross_entropy) a term in A is
exactly zero, whatever q is; only dro and stable_reinforce have another, which pulls lp to q.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from services.common.errors import InvalidInput

Fields = Mapping[str, torch.Tensor]
Config = Mapping[str, float]
PositionLoss = Callable[[torch.Tensor, Fields, Config], torch.Tensor]
DatumValue = Callable[[torch.Tensor, Fields], torch.Tensor]

DATUM_VALUE = "datum_value"
"""Name of the field that holds what Objective.datum_value answered for the position's datum."""

TRUNCATION = 2.0
"""stable_reinforce cuts the ratio off here."""


@dataclass(frozen=True, slots=True)
class Objective:
    """`fields` are the per-position inputs it reads; `defaults` its configuration.

    `datum_value`, of a loss whose positions depend on each other: one number out of a whole
    datum's detached log-probabilities and fields [L, K], needed before any position's loss.
    """

    function: PositionLoss
    fields: tuple[str, ...]
    defaults: Config
    datum_value: DatumValue | None = None


def position_losses(name: str, logprobs: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    """Loss of every position, float32, of the same shape as `logprobs` [..., K] and the fields.

    A loss with a `datum_value` takes it from the field DATUM_VALUE; without it, `logprobs` must be
    those of one whole datum.

    Raises InvalidInput for an unknown loss, a missing field or an unknown configuration key.
    """
    objective = find_objective(name)
    for key in config:
        if key not in objective.defaults:
            raise InvalidInput(f"loss_fn_config.{key}: loss {name} does not know it; known: {list(objective.defaults)}")
    for field in objective.fields:
        if field not in fields:
            raise InvalidInput(f"loss_fn_inputs.{field}: loss {name} needs it")
    if objective.datum_value is not None and DATUM_VALUE not in fields:
        value = objective.datum_value(logprobs.detach(), fields)
        fields = {**fields, DATUM_VALUE: value.expand_as(logprobs)}
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
    return _clipped(lp - fields["logprobs"], fields["advantages"], config)


def _gspo(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    # The datum's ratio as a value, each position's own derivative: s exp(lp - stopgrad(lp)).
    return _clipped(fields[DATUM_VALUE] + (lp - lp.detach()), fields["advantages"], config)


def _clipped(log_ratio: torch.Tensor, a: torch.Tensor, config: Config) -> torch.Tensor:
    """-min(r A, clip(r, lo, hi) A); 0 where A is 0."""
    ratio = torch.where(a != 0, log_ratio.detach(), 0.0).exp()
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"]) * a
    # Equal terms (r within the bounds) count as unclipped. The ratio is formed again only where
    # it is selected: an overflowing but clipped one would turn its zero gradient into NaN.
    unclipped = ratio * a <= clipped
    return -torch.where(unclipped, torch.where((a != 0) & unclipped, log_ratio, 0.0).exp() * a, clipped)


def _mean_log_ratio(lp: torch.Tensor, fields: Fields) -> torch.Tensor:
    """Mean of lp - q where `sequence_ratio_mask` is not 0; 0 when that is nowhere."""
    counted = fields["sequence_ratio_mask"] != 0
    return torch.where(counted, lp - fields["logprobs"], 0.0).sum() / counted.sum().clamp_min(1)


def _cispo(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    a = fields["advantages"]
    ratio = _ratio(lp.detach(), fields, a != 0)
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    return -clipped * a * torch.where(a == 0, 0.0, lp)


def _dro(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    return -(lp * fields["advantages"] - 0.5 * config["beta"] * (lp - fields["logprobs"]).square())


def _stable_reinforce(lp: torch.Tensor, fields: Fields, config: Config) -> torch.Tensor:
    """q and its untempered form are the sampler's records; NaN: the position was not sampled, or is unknown."""
    a, raw = fields["advantages"], fields["raw_logprobs"]
    ratio = _ratio(lp.detach(), fields, a != 0).clamp(max=TRUNCATION)
    gap = torch.where(raw.isnan(), 0.0, lp - raw.nan_to_num())
    return 0.5 * config["kl_coeff"] * gap.square() - ratio * a * torch.where(a == 0, 0.0, lp)


def _ratio(lp: torch.Tensor, fields: Fields, active: torch.Tensor) -> torch.Tensor:
    """exp(lp - q) where `active`, else 1 without a gradient."""
    return torch.where(active, lp - fields["logprobs"], 0.0).exp()


_POLICY = ("logprobs", "advantages")
_BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": Objective(_cross_entropy, ("weights",), {}),
    "importance_sampling": Objective(_importance_sampling, _POLICY, {}),
    "ppo": Objective(_ppo, _POLICY, _BOUNDS),
    "cispo": Objective(_cispo, _POLICY, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": Objective(_dro, _POLICY, {"beta": 0.05}),
    "gspo": Objective(_gspo, (*_POLICY, "sequence_ratio_mask"), _BOUNDS, _mean_log_ratio),
    "stable_reinforce": Objective(_stable_reinforce, (*_POLICY, "raw_logprobs"), {"kl_coeff": 0.05}),
}

LOSSES: tuple[str, ...] = tuple(OBJECTIVES)
