"""The mixture of experts in an MLP's place: a frozen router, and experts that carry adapters.

Each (token, choice) pair is a row. Rows are sorted by expert, stably: the tokens of a micro-batch
are sorted by slot, so within an expert the rows of a slot stay together, and the expert's two
matrices see segments as every other linear layer does.

The router's probabilities depend on the tokens although its weight is frozen, so gradients flow
through them too. Rows are summed per token through the inverse permutation, not by scattered
additions, whose order would differ from run to run on a GPU.

Tensor parallelism cuts every expert's inner size. All that follows the copy at the entry (the
router's part of the gradient, too) is linear in this rank's shard and completed by the two
collectives around the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer import TransformerConfig

from services.trainer.megatron.frozen import FrozenMatrix, freeze
from services.trainer.megatron.lora.linear import backward_linear, forward_linear
from services.trainer.megatron.lora.routing import Deltas, Routing
from services.trainer.megatron.mixture import Mixture
from services.trainer.megatron.nodes import run_node
from services.trainer.megatron.swiglu import swiglu, swiglu_backward


class Expert(torch.nn.Module):
    """This rank's shard of one expert: `gate_up` [2 ffn, H] and `down` [H, ffn]."""

    frozen_gate_up: FrozenMatrix
    frozen_down: FrozenMatrix

    def __init__(self, hidden: int, ffn: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty(2 * ffn, hidden, dtype=dtype), requires_grad=False)
        self.down = torch.nn.Parameter(torch.empty(hidden, ffn, dtype=dtype), requires_grad=False)

    def freeze(self) -> None:
        self.frozen_gate_up, self.frozen_down = freeze(self.gate_up), freeze(self.down)


class ExpertsMLP(torch.nn.Module):
    """Megatron's MLP slot."""

    layer: int
    routing: Routing
    anchor: torch.Tensor
    _experts: list[Expert]

    def __init__(self, config: TransformerConfig, mixture: Mixture, tp_group: dist.ProcessGroup) -> None:
        super().__init__()
        self._mixture, self._tp_group = mixture, tp_group
        hidden, dtype = config.hidden_size, config.params_dtype
        ffn = mixture.ffn // tp_group.size()
        self.router = torch.nn.Parameter(torch.empty(mixture.experts, hidden, dtype=dtype), requires_grad=False)
        self._experts = [Expert(hidden, ffn, dtype) for _ in range(mixture.experts)]
        self.experts = torch.nn.ModuleList(self._experts)

    def connect(self, layer: int, routing: Routing, anchor: torch.Tensor) -> None:
        """Once the weights are loaded and on their device: they are frozen from here on."""
        self.layer, self.routing, self.anchor = layer, routing, anchor
        for expert in self._experts:
            expert.freeze()

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None]:
        """[T, 1, H] -> [T, 1, H]."""
        x = copy_to_tensor_model_parallel_region(hidden_states, group=self._tp_group).squeeze(1)
        shares, chosen = route(x, self.router, self._mixture)
        rows = Rows.of(chosen, *self.routing.owners(chosen.device), self._mixture.experts)
        outputs = run_node(_Experts, x, self.anchor, rows, self._works(rows))
        partial = torch.bmm(shares.unsqueeze(1), outputs)
        return reduce_from_tensor_model_parallel_region(partial, group=self._tp_group), None

    def _works(self, rows: Rows) -> list[_Work]:
        works, start = [], 0
        for number, tokens in enumerate(rows.counts):
            if count := sum(tokens):
                works.append(self._work(number, slice(start, start + count), tokens))
                start += count
        return works

    def _work(self, number: int, rows: slice, tokens: Sequence[int]) -> _Work:
        up = self.routing.expert_deltas(("gate_up", self.layer, number), tokens)
        down = self.routing.expert_deltas(("down", self.layer, number), tokens)
        return _Work(self._experts[number], rows, up, down)


def route(x: torch.Tensor, router: torch.Tensor, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, H] -> the shares of its experts [T, k] in x's dtype, and which they are, int64 [T, k].

    In the order of transformers' Qwen3MoeTopKRouter: probabilities in float32, the highest k, then
    scaled. Another order gives other shares in low precision.
    """
    probabilities = F.softmax(F.linear(x, router), dim=-1, dtype=torch.float32)
    shares, chosen = torch.topk(probabilities, mixture.chosen, dim=-1)
    if mixture.normalised:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return shares.to(x.dtype), chosen


@dataclass(frozen=True, slots=True)
class Rows:
    """The (token, choice) pairs sorted by expert.

    `tokens`, `order`, `inverse` int64 [T k]: of row i, its token and its pair; of each pair, its row.
    `counts[expert][segment]`: rows of each expert by the segment that their tokens belong to.
    """

    tokens: torch.Tensor
    order: torch.Tensor
    inverse: torch.Tensor
    counts: list[list[int]]

    @classmethod
    def of(cls, chosen: torch.Tensor, owners: torch.Tensor, segments: int, experts: int) -> Rows:
        """chosen int64 [T, k], owners int64 [T]: which of the `segments` each token belongs to, ascending."""
        pairs = chosen.reshape(-1)
        order = torch.argsort(pairs, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        cells = torch.bincount((chosen * segments + owners.unsqueeze(1)).reshape(-1), minlength=experts * segments)
        return cls(order // chosen.shape[1], order, inverse, cells.view(experts, segments).tolist())


@dataclass(frozen=True, slots=True)
class _Work:
    """One expert's share of the rows."""

    expert: Expert
    rows: slice
    up: Deltas
    down: Deltas


@dataclass(slots=True)
class _Kept:
    """What an expert's backward reads."""

    gate_up: torch.Tensor
    inner: torch.Tensor
    up: list[torch.Tensor | None]
    down: list[torch.Tensor | None]


class _Experts(torch.autograd.Function):
    """x [T, H] -> what each chosen expert answers, [T, k, H]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor, rows: Rows, works: list[_Work]) -> torch.Tensor:
        sorted_x = x.index_select(0, rows.tokens)
        y = torch.empty_like(sorted_x)
        kept = [_forward(sorted_x[work.rows], y[work.rows], work) for work in works]
        if anchor.requires_grad:
            ctx.save_for_backward(x)
            ctx.rows, ctx.works, ctx.kept = rows, works, kept
        return y.index_select(0, rows.inverse).view(x.shape[0], -1, x.shape[1])

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        sorted_x = x.index_select(0, ctx.rows.tokens)  # again: kept, it would be the chosen experts' times as large
        sorted_dy = dy.reshape(sorted_x.shape).index_select(0, ctx.rows.order)
        dx = torch.empty_like(sorted_x)
        for work, kept in zip(ctx.works, ctx.kept, strict=True):
            dx[work.rows] = _backward(sorted_dy[work.rows], sorted_x[work.rows], work, kept)
        return dx.index_select(0, ctx.rows.inverse).view(dy.shape).sum(1), None, None, None


def _forward(x: torch.Tensor, y: torch.Tensor, work: _Work) -> _Kept:
    """Writes the expert's answer to `y` [n, H]."""
    gate_up, up = forward_linear(x, work.expert.frozen_gate_up, work.up)
    inner = swiglu(gate_up)
    answer, down = forward_linear(inner, work.expert.frozen_down, work.down)
    y.copy_(answer)
    return _Kept(gate_up, inner, up, down)


def _backward(dy: torch.Tensor, x: torch.Tensor, work: _Work, kept: _Kept) -> torch.Tensor:
    dinner = backward_linear(dy, kept.inner, work.expert.frozen_down, work.down, kept.down)
    dgate_up = swiglu_backward(kept.gate_up, dinner)
    return backward_linear(dgate_up, x, work.expert.frozen_gate_up, work.up, kept.up)
