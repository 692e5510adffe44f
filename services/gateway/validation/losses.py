"""Which inputs and configuration each loss reads."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property

from tinkermesh.v1 import types_pb2 as types

from services.common import stable_reinforce
from services.common.errors import InvalidInput
from services.gateway.wire.batch import RawLoss

TARGETS = "target_tokens"
# Names the SDK types; one that the chosen loss does not read is dropped, any other name is refused.
TYPED_INPUTS = frozenset({TARGETS, "weights", "logprobs", "advantages", "sequence_ratio_mask"})
PER_TOKEN_THRESHOLDS = frozenset({"clip_low_threshold", "clip_high_threshold"})


@dataclass(frozen=True)
class LossRule:
    """fields: float32 vectors beside the targets, in payload order; config: accepted keys with defaults.

    `matrix`: takes several targets per position, (N, K). `unread`: inputs that belong to the loss by
    the protocol, though this mesh has their values from elsewhere: neither needed nor warned about.
    """

    fields: tuple[str, ...]
    config: dict[str, float] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()  # fields that are ones when absent
    matrix: bool = False
    unread: frozenset[str] = frozenset()

    @cached_property
    def names(self) -> frozenset[str]:
        """All inputs the loss reads."""
        return frozenset((TARGETS, *self.fields))


_RL = ("logprobs", "advantages")
RULES: dict[str, LossRule] = {
    "cross_entropy": LossRule(("weights",), optional=frozenset({"weights"}), matrix=True),
    "importance_sampling": LossRule(_RL, matrix=True),
    "ppo": LossRule(_RL, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": LossRule(_RL, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": LossRule(_RL, {"beta": 0.05}),
    "gspo": LossRule((*_RL, "sequence_ratio_mask"), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    stable_reinforce.NAME: LossRule(stable_reinforce.GIVEN, {"kl_coeff": 0.05}, unread=frozenset({"logprobs"})),
}


def rule_for(loss_fn: str, served: Collection[str]) -> LossRule:
    """Raises InvalidInput naming what this mesh supports. `served` is what the pool's trainer registered."""
    supported = sorted(RULES.keys() & set(served)) if served else sorted(RULES)
    if loss_fn not in supported:
        raise InvalidInput(f"loss_fn {loss_fn[:80]!r} is not supported by this mesh; use one of {', '.join(supported)}")
    return RULES[loss_fn]


def loss_config(loss: RawLoss, rule: LossRule, *, relaxed: bool) -> types.LossConfig:
    """The effective configuration. Raises InvalidInput for unknown keys and values out of range."""
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for key, value in loss.config.items():
        if key not in rule.config and not relaxed:
            accepted = ", ".join(rule.config) or "none"
            raise InvalidInput(f"loss_fn_config: {key[:80]!r} is not read by {loss.name}; accepted keys: {accepted}")
        if isinstance(value, str):
            texts[key] = _text(loss.name, key, value, rule)
        else:
            numbers[key] = _number(key, value)
    _check_ranges({**rule.config, **numbers})
    return types.LossConfig(loss_fn=loss.name, numbers=numbers, texts=texts)


def _text(name: str, key: str, value: str, rule: LossRule) -> str:
    if key in rule.config:
        raise InvalidInput(f"loss_fn_config: {key} of {name} must be a number, not the text {value[:40]!r}")
    return value


def _number(key: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidInput(f"loss_fn_config: {key[:80]} must be a finite number, not {value}")
    return float(value) + 0.0  # -0.0 and 0.0 are one value, so they pack and deduplicate as one


def _check_ranges(config: dict[str, float]) -> None:
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if low is not None and high is not None and low > high:
        raise InvalidInput(f"loss_fn_config: clip_low_threshold {low:g} is above clip_high_threshold {high:g}")
    for key in ("beta", "kl_coeff"):
        if config.get(key, 0.0) < 0.0:
            raise InvalidInput(f"loss_fn_config: {key} must be >= 0, not {config[key]:g}")
