"""Frozen base weights: Hugging Face safetensors -> this rank's Megatron parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from safetensors import safe_open

from services.common.errors import InvalidInput
from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.mixture import Mixture


class HfWeights:
    """Reads slices of named tensors out of a directory's safetensors files."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        for path in sorted(directory.glob("*.safetensors")):
            file = stack.enter_context(safe_open(str(path), framework="pt"))
            self._files.update(dict.fromkeys(file.keys(), file))

    def shard(self, name: str, dim: int | None, rank: int, size: int) -> torch.Tensor:
        """Part `rank` of `size` of the tensor, cut along `dim` (None: all of it)."""
        if name not in self._files:
            raise InvalidInput(f"model path {self._directory}: tensor {name} is missing")
        if dim is None:
            whole: torch.Tensor = self._files[name].get_tensor(name)
            return whole
        view = self._files[name].get_slice(name)
        step = view.get_shape()[dim] // size
        cut = slice(rank * step, (rank + 1) * step)
        part: torch.Tensor = view[cut] if dim == 0 else view[:, cut]
        return part


Sources = dict[str, tuple[tuple[str, ...], int | None]]

# parameter of one Megatron layer -> (Hugging Face tensors stacked into it, dimension cut over ranks)
_LAYER: Sources = {
    "input_layernorm.weight": (("input_layernorm.weight",), None),
    "self_attention.linear_qkv.weight": (
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        0,
    ),
    "self_attention.linear_proj.weight": (("self_attn.o_proj.weight",), 1),
    "pre_mlp_layernorm.weight": (("post_attention_layernorm.weight",), None),
}
_MLP: Sources = {
    "mlp.linear_fc1.weight": (("mlp.gate_proj.weight", "mlp.up_proj.weight"), 0),
    "mlp.linear_fc2.weight": (("mlp.down_proj.weight",), 1),
}
_QK_NORM: Sources = {
    "self_attention.q_layernorm.weight": (("self_attn.q_norm.weight",), None),
    "self_attention.k_layernorm.weight": (("self_attn.k_norm.weight",), None),
}


def _mixture(mixture: Mixture) -> Sources:
    sources: Sources = {"mlp.router": (("mlp.gate.weight",), None)}
    for i in range(mixture.experts):
        root = f"mlp.experts.{i}"
        sources[f"{root}.gate_up"] = ((f"{root}.gate_proj.weight", f"{root}.up_proj.weight"), 0)
        sources[f"{root}.down"] = ((f"{root}.down_proj.weight",), 1)
    return sources


def _sources(model: Architecture) -> Iterator[tuple[str, tuple[str, ...], int | None]]:
    for i in range(model.layers):
        mixture = model.mixture_of(i)
        layer_map = _LAYER | (_QK_NORM if model.qk_norm else {}) | (_mixture(mixture) if mixture else _MLP)
        for target, (names, dim) in layer_map.items():
            yield f"decoder.layers.{i}.{target}", tuple(f"model.layers.{i}.{name}" for name in names), dim
    yield "embedding.word_embeddings.weight", ("model.embed_tokens.weight",), 0
    yield "decoder.final_layernorm.weight", ("model.norm.weight",), None
    # Tied models are built untied: the base is frozen, so two copies never drift apart.
    yield "output_layer.weight", ("model.embed_tokens.weight" if model.tied else "lm_head.weight",), 0


@torch.no_grad()
def load_weights(model: GPTModel, facts: Architecture, directory: Path, tp_rank: int, tp_size: int) -> None:
    """Fill every parameter; raises InvalidInput for a missing or misshaped tensor."""
    parameters = dict(model.named_parameters())
    with ExitStack() as stack:
        files = HfWeights(directory, stack)
        for target, names, dim in _sources(facts):
            value = torch.cat([files.shard(name, dim, tp_rank, tp_size) for name in names])
            parameter = parameters.pop(target)
            if value.shape != parameter.shape:
                raise InvalidInput(f"{names[0]}: shape {tuple(value.shape)} should be {tuple(parameter.shape)}")
            parameter.copy_(value)
    if parameters:
        raise InvalidInput(f"model path {directory}: nothing fills {', '.join(sorted(parameters))}")
