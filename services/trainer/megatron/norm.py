"""RMSNorm with a frozen weight, as one autograd node."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig

from services.trainer.megatron.nodes import run_node


class FrozenRMSNorm(torch.nn.Module):
    """Over the last dimension; statistics in fp32."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return run_node(_RMSNorm, x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, scale)
        ctx.weight = weight
        y: torch.Tensor = x * scale.to(x.dtype)
        return y.mul_(weight)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        dx = dy * ctx.weight
        mean = torch.linalg.vecdot(dx, x).unsqueeze(-1).float() / x.shape[-1]
        dx.mul_(scale.to(x.dtype))
        dx.addcmul_(x, mean.mul_(scale.pow(3)).to(x.dtype), value=-1.0)
        return dx, None, None
