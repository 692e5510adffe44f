"""The facts of a mixture of experts, read from config.json, or a refusal that names the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.common.errors import InvalidInput

MIXTURE = "Qwen3MoeForCausalLM"
"""What config.json's `architectures` says of such a model."""

_REFUSED = (
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "num_shared_experts",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "scoring_func",
)


@dataclass(frozen=True, slots=True)
class Mixture:
    """SwiGLU experts of inner size `ffn` in the place of the MLP of `layers`, none of them shared.

    Each token goes to the `chosen` experts of the highest softmax probability; `normalised`: their
    probabilities are scaled to a sum of 1.
    """

    experts: int
    chosen: int
    ffn: int
    normalised: bool
    layers: frozenset[int]


def read_mixture(config: dict[str, Any]) -> Mixture | None:
    """None when no layer is sparse. Raises InvalidInput, and KeyError for a missing field."""
    for name in _REFUSED:
        if config.get(name):
            raise InvalidInput(
                f"{name}: {config[name]!r} is not supported; only a softmax router without shared experts"
            )
    # transformers 5 writes the field under its new name.
    experts = int(config["num_local_experts" if "num_local_experts" in config else "num_experts"])
    layers = _sparse_layers(config) if experts else frozenset()
    if not layers:
        return None
    chosen = int(config["num_experts_per_tok"])
    if not 1 <= chosen <= experts:
        raise InvalidInput(f"num_experts_per_tok: {chosen} is outside 1..{experts}, the number of experts")
    return Mixture(
        experts=experts,
        chosen=chosen,
        ffn=int(config["moe_intermediate_size"]),
        normalised=bool(config.get("norm_topk_prob", False)),
        layers=layers,
    )


def _sparse_layers(config: dict[str, Any]) -> frozenset[int]:
    step, dense = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers") or ()
    if step < 1:
        raise InvalidInput(f"decoder_sparse_step: {step} is not supported; it must be at least 1")
    return frozenset(i for i in range(int(config["num_hidden_layers"])) if (i + 1) % step == 0 and i not in dense)
