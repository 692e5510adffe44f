"""The layer spec: Megatron's transformer layer with slot-aware linear layers.

Norm and core attention are the seam between devices. Here torch's kernels serve both; on a GPU
image with Transformer Engine its norm and THD attention can take these two places, because the
adapters live in the linear layers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.attention import CanonicalSelfAttention, PackedCoreAttention
from services.trainer.megatron.experts import ExpertsMLP
from services.trainer.megatron.frozen import FrozenMatrix, freeze
from services.trainer.megatron.lora.linear import apply_slot_linear
from services.trainer.megatron.lora.routing import Routing
from services.trainer.megatron.lora.targets import GroupKey
from services.trainer.megatron.mixture import Mixture
from services.trainer.megatron.nodes import run_node
from services.trainer.megatron.norm import FrozenRMSNorm
from services.trainer.megatron.swiglu import Swiglu


class SlotPort:
    """What a slot-aware linear layer is told after the model is built."""

    key: GroupKey
    routing: Routing
    anchor: torch.Tensor
    weight: torch.nn.Parameter
    frozen: FrozenMatrix

    def connect(self, key: GroupKey, routing: Routing, anchor: torch.Tensor) -> None:
        """Once the weight is loaded and on its device: it is frozen from here on."""
        self.key, self.routing, self.anchor = key, routing, anchor
        self.frozen = freeze(self.weight)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[T, 1, in] -> [T, 1, out]."""
        y = apply_slot_linear(x.view(x.shape[0], -1), self.frozen, self.routing.deltas(self.key), self.anchor)
        return y.unsqueeze(1)


class SlotColumnLinear(SlotPort, ColumnParallelLinear):  # type: ignore[misc]
    def forward(self, input_: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        return self.project(copy_to_tensor_model_parallel_region(input_, group=self.tp_group)), None


class SlotRowLinear(SlotPort, RowParallelLinear):  # type: ignore[misc]
    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:
        partial = self.project(input_)
        return reduce_from_tensor_model_parallel_region(partial, group=self.tp_group), None


class SwigluMLP(MLP):  # type: ignore[misc]
    """Megatron's MLP with silu(gate) * up as one autograd node."""

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        gate_up, _bias = self.linear_fc1(hidden_states)
        result: tuple[torch.Tensor, None] = self.linear_fc2(run_node(Swiglu, gate_up))
        return result


def _residual_add(_training: bool, _fused: bool) -> Callable[..., torch.Tensor]:
    """Megatron's bias-dropout-add slot for layers that have neither bias nor dropout."""
    return lambda output, residual, _probability: output[0] + residual


def decoder_spec(facts: Architecture, tp_group: dist.ProcessGroup) -> ModuleSpec | TransformerBlockSubmodules:
    """The spec of every layer when they are alike, else layer by layer."""
    if facts.mixture is None:
        return _layer(facts, _mlp(facts, tp_group))
    mlps = [
        _experts(mixture, tp_group) if (mixture := facts.mixture_of(i)) else _mlp(facts, tp_group)
        for i in range(facts.layers)
    ]
    return TransformerBlockSubmodules([_layer(facts, mlp) for mlp in mlps], layer_norm=FrozenRMSNorm)


def _mlp(facts: Architecture, tp_group: dist.ProcessGroup) -> ModuleSpec:
    return ModuleSpec(
        module=SwigluMLP,
        params={"ffn_hidden_size": facts.ffn, "tp_group": tp_group},
        submodules=MLPSubmodules(linear_fc1=SlotColumnLinear, linear_fc2=SlotRowLinear),
    )


def _experts(mixture: Mixture, tp_group: dist.ProcessGroup) -> ModuleSpec:
    return ModuleSpec(module=ExpertsMLP, params={"mixture": mixture, "tp_group": tp_group})


def _layer(facts: Architecture, mlp: ModuleSpec) -> ModuleSpec:
    attention = SelfAttentionSubmodules(
        linear_qkv=SlotColumnLinear,
        core_attention=PackedCoreAttention,
        linear_proj=SlotRowLinear,
        q_layernorm=FrozenRMSNorm if facts.qk_norm else None,
        k_layernorm=FrozenRMSNorm if facts.qk_norm else None,
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=FrozenRMSNorm,
            self_attention=ModuleSpec(
                module=CanonicalSelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=attention,
            ),
            self_attn_bda=_residual_add,
            pre_mlp_layernorm=FrozenRMSNorm,
            mlp=mlp,
            mlp_bda=_residual_add,
        ),
    )
