"""silu(gate) * up over [gate, up] in one tensor, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """[..., 2 n] -> [..., n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def swiglu_backward(gate_up: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """dy [..., n] -> [..., 2 n]."""
    gate, up = gate_up.chunk(2, dim=-1)
    gradient = torch.empty_like(gate_up)
    dgate, dup = gradient.chunk(2, dim=-1)
    torch.mul(dy, F.silu(gate), out=dup)
    torch.ops.aten.silu_backward.grad_input(dy * up, gate, grad_input=dgate)
    return gradient


class Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate_up)
        return swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
        (gate_up,) = ctx.saved_tensors
        return swiglu_backward(gate_up, dy)
