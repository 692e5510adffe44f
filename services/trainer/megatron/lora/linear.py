"""A frozen linear layer with one low-rank delta per segment of tokens, as one autograd node.

    y[t] = x[t] Wᵀ + scaling · (x[t] Aᵀ) Bᵀ      with A, B of the slot that token t belongs to

The parts of a group (q, k, v; gate, up) share x: their A's lie under each other in the flat
buffer, so one GEMM serves all of them. Gradients of A and B are written straight into the
slot's gradient buffer: no autograd leaves, no copies, no gradient for W.

Tensor parallelism adds no collective here. Every rank's y (column-parallel) or partial y
(row-parallel) is linear in its own shard, so the layer's usual all-reduce also completes the
delta. The gradients of the weights that are whole on every rank come out as partial sums;
windows.py adds them once before the optimizer step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from services.trainer.megatron.lora.routing import Delta
from services.trainer.megatron.nodes import run_node


def apply_slot_linear(
    x: torch.Tensor, weight: torch.Tensor, deltas: Sequence[Delta], anchor: torch.Tensor
) -> torch.Tensor:
    """x [T, in], weight [out, in] -> [T, out].

    `anchor` requires grad while a backward is wanted, so that the first layer's node is
    recorded although its input needs no gradient.
    """
    return run_node(_SlotLinear, x, anchor, weight, deltas)


class _SlotLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, anchor: torch.Tensor, weight: torch.Tensor, deltas: Sequence[Delta]
    ) -> torch.Tensor:
        y = torch.mm(x, weight.t())
        hidden = [_add_delta(y, x, delta) for delta in deltas]
        if anchor.requires_grad:
            ctx.save_for_backward(x)
            ctx.weight, ctx.deltas, ctx.hidden = weight, deltas, hidden
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dy = dy.contiguous()
        dx = torch.mm(dy, ctx.weight) if ctx.needs_input_grad[0] else None
        for delta, h in zip(ctx.deltas, ctx.hidden, strict=True):
            backward_delta(dx, dy, x, h, delta)
        return dx, None, None, None


def _add_delta(y: torch.Tensor, x: torch.Tensor, delta: Delta) -> torch.Tensor:
    """Adds the delta to y in place; returns h = x Aᵀ [t, parts * r]."""
    h = torch.mm(x[delta.start : delta.end], delta.weights.a.t())
    column = 0
    for i, b in enumerate(delta.weights.b):
        part = y[delta.start : delta.end, column : column + b.shape[0]]
        part.addmm_(h[:, i * delta.rank : (i + 1) * delta.rank], b.t(), alpha=delta.scaling)
        column += b.shape[0]
    return h


def backward_delta(dx: torch.Tensor | None, dy: torch.Tensor, x: torch.Tensor, h: torch.Tensor, delta: Delta) -> None:
    """Writes dA and dB, adds to dx in place. x, dy, dx are the whole micro-batch's."""
    gradients = delta.gradients
    if gradients is None:
        return
    xs, dys = x[delta.start : delta.end], dy[delta.start : delta.end]
    dh = torch.empty_like(h)
    column = 0
    for i, (b, db) in enumerate(zip(delta.weights.b, gradients.b, strict=True)):
        dyi = dys[:, column : column + b.shape[0]]
        part = slice(i * delta.rank, (i + 1) * delta.rank)
        torch.mm(dyi, b, out=dh[:, part])
        accumulate(db, dyi.t(), h[:, part], delta.beta, delta.scaling)
        column += b.shape[0]
    dh.mul_(delta.scaling)
    accumulate(gradients.a, dh.t(), xs, delta.beta, 1.0)
    if dx is not None:
        dx[delta.start : delta.end].addmm_(dh, delta.weights.a)


def accumulate(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor, beta: float, alpha: float) -> None:
    """target = beta * target + alpha * left @ right; a lower-precision product is added in fp32."""
    if left.dtype == target.dtype:
        target.addmm_(left, right, beta=beta, alpha=alpha)
    elif beta == 0.0:
        target.copy_(torch.mm(left, right)).mul_(alpha)
    else:
        target.add_(torch.mm(left, right), alpha=alpha)
