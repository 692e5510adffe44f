"""The facts of a Hugging Face model that the Megatron build needs, or a refusal that names the field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import InvalidInput
from services.trainer.megatron.mixture import MIXTURE, Mixture, read_mixture

SUPPORTED = ("LlamaForCausalLM", "Qwen3ForCausalLM", MIXTURE)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    With a `mixture`, experts take the MLP's place in the mixture's layers.
    """

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    qk_norm: bool
    tied: bool
    mixture: Mixture | None = None

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def mixture_of(self, layer: int) -> Mixture | None:
        """What takes the MLP's place in this layer; None: it has an MLP."""
        return self.mixture if self.mixture is not None and layer in self.mixture.layers else None

    def check_tensor_parallel(self, size: int) -> None:
        """Raises InvalidInput when a dimension cannot be cut into `size` equal parts."""
        for name, value in (
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.kv_heads),
            ("intermediate_size", self.ffn),
            ("vocab_size", self.vocab),
            ("moe_intermediate_size", self.mixture.ffn if self.mixture else 0),
        ):
            if value % size:
                raise InvalidInput(f"tensor parallel size {size} does not divide the model's {name} {value}")


def read_architecture(directory: Path) -> Architecture:
    """Raises InvalidInput naming the field of config.json that is missing or not supported."""
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"model path {directory}: config.json cannot be read: {error}") from error
    try:
        return _architecture(config)
    except KeyError as error:
        raise InvalidInput(f"model path {directory}: config.json has no {error.args[0]}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"model path {directory}: config.json holds an unfit value: {error}") from error


def _architecture(config: dict[str, Any]) -> Architecture:
    kind = (config.get("architectures") or [""])[0]
    if kind not in SUPPORTED:
        raise InvalidInput(f"architectures: {kind!r} is not supported; supported are {', '.join(SUPPORTED)}")
    _refuse_unsupported(config)
    heads = int(config["num_attention_heads"])
    return Architecture(
        vocab=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        ffn=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        norm_eps=float(config["rms_norm_eps"]),
        rope_theta=_rope_theta(config),
        max_positions=int(config["max_position_embeddings"]),
        qk_norm=kind != "LlamaForCausalLM",
        tied=bool(config.get("tie_word_embeddings", False)),
        mixture=read_mixture(config) if kind == MIXTURE else None,
    )


def _rope_theta(config: dict[str, Any]) -> float:
    # transformers 5 moved rope_theta into rope_parameters and renamed rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InvalidInput(f"rope_type: {kind!r} is not supported; only 'default' is")
    return float(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))


def _refuse_unsupported(config: dict[str, Any]) -> None:
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(name):
            raise InvalidInput(f"{name}: true is not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise InvalidInput(f"hidden_act: {activation!r} is not supported; only 'silu' is")
