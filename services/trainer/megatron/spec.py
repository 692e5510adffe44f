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
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.attention import SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from services.trainer.megatron.attention import CanonicalSelfAttention, PackedCoreAttention
from services.trainer.megatron.frozen import FrozenMatrix
from services.trainer.megatron.lora.linear import apply_slot_linear
from services.trainer.megatron.lora.routing import Routing
from services.trainer.megatron.lora.targets import GroupKey
from services.trainer.megatron.nodes import run_node
from services.trainer.megatron.norm import FrozenRMSNorm


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
        self.frozen = FrozenMatrix(self.weight)
        if self.frozen.packed:
            self.weight.data = torch.empty(0)
            self.frozen.release()

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
        result: tuple[torch.Tensor, None] = self.linear_fc2(run_node(_Swiglu, gate_up))
        return result


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        gradient = torch.empty_like(gate_up)
        dgate, dup = gradient.chunk(2, dim=-1)
        torch.mul(dy, F.silu(gate), out=dup)
        torch.ops.aten.silu_backward.grad_input(dy * up, gate, grad_input=dgate)
        return gradient


def _residual_add(_training: bool, _fused: bool) -> Callable[..., torch.Tensor]:
    """Megatron's bias-dropout-add slot for layers that have neither bias nor dropout."""
    return lambda output, residual, _probability: output[0] + residual


def layer_spec(*, qk_norm: bool, ffn_size: int, tp_group: dist.ProcessGroup) -> ModuleSpec:
    """The spec of every layer of a dense decoder."""
    attention = SelfAttentionSubmodules(
        linear_qkv=SlotColumnLinear,
        core_attention=PackedCoreAttention,
        linear_proj=SlotRowLinear,
        q_layernorm=FrozenRMSNorm if qk_norm else None,
        k_layernorm=FrozenRMSNorm if qk_norm else None,
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
            mlp=ModuleSpec(
                module=SwigluMLP,
                params={"ffn_hidden_size": ffn_size, "tp_group": tp_group},
                submodules=MLPSubmodules(linear_fc1=SlotColumnLinear, linear_fc2=SlotRowLinear),
            ),
            mlp_bda=_residual_add,
        ),
    )
