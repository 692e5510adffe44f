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

from services.trainer.megatron.frozen import FrozenMatrix
from services.trainer.megatron.lora.routing import Delta, Deltas
from services.trainer.megatron.nodes import run_node


def apply_slot_linear(x: torch.Tensor, weight: FrozenMatrix, deltas: Deltas, anchor: torch.Tensor) -> torch.Tensor:
    """x [T, in], weight [out, in] -> [T, out].

    `anchor` requires grad while a backward is wanted, so that the first layer's node is
    recorded although its input needs no gradient.
    """
    return run_node(_SlotLinear, x, anchor, weight, deltas)


def forward_linear(
    x: torch.Tensor, weight: FrozenMatrix, deltas: Deltas
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """y, and what backward_linear asks back: h of each segment."""
    y = weight.times_transposed(x)
    cuts = zip(_cut(x, deltas), _cut(y, deltas), deltas.items, strict=True)
    return y, [None if delta is None else _add_delta(xs, ys, delta) for xs, ys, delta in cuts]


def backward_linear(
    dy: torch.Tensor, x: torch.Tensor, weight: FrozenMatrix, deltas: Deltas, hidden: list[torch.Tensor | None]
) -> torch.Tensor:
    """Writes the gradients of A and B; dy [T, out], contiguous -> dx [T, in]."""
    dx = weight.times(dy)
    _backward_deltas(_cut(dx, deltas), dy, x, deltas, hidden)
    return dx


class _SlotLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor, weight: FrozenMatrix, deltas: Deltas) -> torch.Tensor:
        y, hidden = forward_linear(x, weight, deltas)
        if anchor.requires_grad:
            ctx.save_for_backward(x)
            ctx.weight, ctx.deltas, ctx.hidden = weight, deltas, hidden
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dy = dy.contiguous()
        if ctx.needs_input_grad[0]:
            return backward_linear(dy, x, ctx.weight, ctx.deltas, ctx.hidden), None, None, None
        _backward_deltas([None] * len(ctx.deltas.items), dy, x, ctx.deltas, ctx.hidden)
        return None, None, None, None


def _cut(tokens: torch.Tensor, deltas: Deltas) -> tuple[torch.Tensor, ...]:
    """The rows of each segment, as views."""
    return torch.split_with_sizes(tokens, deltas.lengths)


def _backward_deltas(
    dx_cuts: Sequence[torch.Tensor | None],
    dy: torch.Tensor,
    x: torch.Tensor,
    deltas: Deltas,
    hidden: list[torch.Tensor | None],
) -> None:
    cuts = zip(dx_cuts, _cut(dy, deltas), _cut(x, deltas), hidden, deltas.items, strict=True)
    for dxs, dys, xs, h, delta in cuts:
        if delta is not None and h is not None:
            _backward_delta(dxs, dys, xs, h, delta)


def _stacked(tokens: torch.Tensor, delta: Delta) -> torch.Tensor:
    """[t, n] as [count, t / count, n] when the segment is a run of slots."""
    return tokens if delta.count == 1 else tokens.view(delta.count, -1, tokens.shape[-1])


def _add_delta(x: torch.Tensor, y: torch.Tensor, delta: Delta) -> torch.Tensor:
    """x [t, in], y [t, out] of one segment: adds the delta to y; returns h = scaling · x Aᵀ [t, parts * r]."""
    weights = delta.weights
    h = torch.matmul(_stacked(x, delta), weights.a_t).mul_(delta.scaling)
    columns = torch.split_with_sizes(_stacked(y, delta), weights.outputs, -1)
    for part, hidden, b_t in zip(columns, torch.chunk(h, len(weights.b), -1), weights.b_t, strict=True):
        accumulate(part, hidden, b_t, 1.0)
    return h


def _backward_delta(dx: torch.Tensor | None, dy: torch.Tensor, x: torch.Tensor, h: torch.Tensor, delta: Delta) -> None:
    """Writes dA and dB of one segment, adds to dx. dx, x [t, in], dy [t, out], h [t, parts * r]."""
    gradients = delta.gradients
    if gradients is None:
        return
    weights, dh = delta.weights, torch.empty_like(h)
    parts = zip(
        torch.split_with_sizes(_stacked(dy, delta), weights.outputs, -1),
        torch.chunk(h, len(weights.b), -1),
        torch.chunk(dh, len(weights.b), -1),
        weights.b,
        gradients.b_t,
        strict=True,
    )
    for dy_part, h_part, dh_part, b, db_t in parts:
        accumulate(dh_part, dy_part, b, 0.0)
        accumulate(db_t, h_part.mT, dy_part, delta.beta)
    dh.mul_(delta.scaling)
    accumulate(gradients.a, dh.mT, _stacked(x, delta), delta.beta)
    if dx is not None:
        accumulate(_stacked(dx, delta), dh, weights.a, 1.0)


def accumulate(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor, beta: float) -> None:
    """target = beta * target + left @ right, per matrix; a lower-precision product is added in fp32."""
    if left.dtype == target.dtype and target.dim() == 2:
        target.addmm_(left, right, beta=beta)
    elif left.dtype == target.dtype and target.is_contiguous():
        target.baddbmm_(left, right, beta=beta)
    else:
        # Into a batched target that is not contiguous torch multiplies matrix by matrix, one call each.
        product = torch.matmul(left, right)
        target.copy_(product) if beta == 0.0 else target.add_(product)
