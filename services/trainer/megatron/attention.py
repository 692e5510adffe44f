"""Self-attention over packed sequences: rotary positions and causal attention per sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.attention import SelfAttention

from services.trainer.megatron.nodes import run_node

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """Megatron's THD parameters, with the lengths as numbers and the rotary tables.

    `cos`, `sin` are [T, 1, d / 2] in the compute dtype, by position within the sequence.
    """

    lengths: tuple[int, ...] = ()
    cos: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    sin: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class CanonicalSelfAttention(SelfAttention):  # type: ignore[misc]
    """Megatron's self-attention with the rows of linear_qkv in the order all q, all k, all v.

    So the output of the projection and of each adapter part is one contiguous block of columns.
    """

    def get_query_key_value_tensors(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
        """[T, 1, H] -> q [T, 1, heads, d], k and v [T, 1, kv_heads, d] of this rank."""
        mixed, _bias = self.linear_qkv(hidden_states)
        heads, groups, d = (
            self.num_attention_heads_per_partition,
            self.num_query_groups_per_partition,
            self.hidden_size_per_attention_head,
        )
        q, k, v = mixed.split([heads * d, groups * d, groups * d], dim=-1)
        t = mixed.shape[0]
        q, k, v = q.view(t, 1, heads, d), k.view(t, 1, groups, d), v.view(t, 1, groups, d)
        if self.q_layernorm is not None:
            q = self.q_layernorm(q)
        if self.k_layernorm is not None:
            k = self.k_layernorm(k)
        return q, k, v


class PackedCoreAttention(torch.nn.Module):
    """Megatron's core-attention slot: THD in, THD out, causal within each sequence."""

    def __init__(self, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> torch.Tensor:
        """query [T, heads, d], key and value [T, kv_heads, d] -> [T, heads * d]."""
        packed = packed_seq_params
        scale = self._scale or 1.0 / math.sqrt(query.shape[-1])
        query, key = rotate(query, packed.cos, packed.sin), rotate(key, packed.cos, packed.sin)
        if query.device.type == "cpu":
            result = run_node(_CpuAttention, query, key, value, packed.lengths, scale)
        else:
            result = _sdpa_attention(query, key, value, packed.lengths, scale)
        return result.view(query.shape[0], -1)


def rotary_tables(
    lengths: Sequence[int], head_dim: int, theta: float, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [T, 1, head_dim / 2] for sequences that each start at position 0."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    angles = torch.arange(max(lengths), dtype=torch.float32, device=device)[:, None] * inverse
    position = torch.cat([torch.arange(length, device=device) for length in lengths])
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return cos[position].unsqueeze(1), sin[position].unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: x [T, n, d], pairs are (i, i + d/2) as in Hugging Face models."""
    return run_node(_Rotate, x, cos, sin)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.tables = (cos, sin)
        return _turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.tables
        return _turn(dy, cos, sin, -1.0), None, None


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=y[..., :half]).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=y[..., half:]).addcmul_(first, sin, value=sign)
    return y


def _runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first token, sequences, length) of each run of equally long neighbours: one kernel call each."""
    start = 0
    for length, group in groupby(lengths):
        count = len(list(group))
        yield start, count, length
        start += count * length


def _heads_first(x: torch.Tensor, start: int, count: int, length: int) -> torch.Tensor:
    """Tokens of one run as [count, n, length, d]."""
    return x[start : start + count * length].view(count, length, *x.shape[1:]).transpose(1, 2)


class _CpuAttention(torch.autograd.Function):
    """The CPU flash kernel per run, without autograd's per-slice zero padding."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float
    ) -> torch.Tensor:
        repeat = q.shape[1] // k.shape[1]
        k, v = _spread(k, repeat), _spread(v, repeat)
        out = torch.empty(q.shape, dtype=q.dtype)
        statistics = []
        for run in _runs(lengths):
            o, lse = _flash(*(_heads_first(t, *run) for t in (q, k, v)), 0.0, True, scale=scale)
            _heads_first(out, *run).copy_(o)
            statistics.append(lse)
        ctx.save_for_backward(q, k, v, out, *statistics)
        ctx.lengths, ctx.scale, ctx.repeat = lengths, scale, repeat
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, *statistics = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dout = dout.view_as(out)
        for run, lse in zip(_runs(ctx.lengths), statistics, strict=True):
            views = [_heads_first(t, *run) for t in (dout, q, k, v, out)]
            parts = _flash_backward(*views, lse, 0.0, True, scale=ctx.scale)
            for target, part in zip((dq, dk, dv), parts, strict=True):
                _heads_first(target, *run).copy_(part)
        return dq, _gather(dk, ctx.repeat), _gather(dv, ctx.repeat), None, None


def _spread(x: torch.Tensor, repeat: int) -> torch.Tensor:
    """[T, groups, d] -> [T, groups * repeat, d]: each key/value head once per query head of its group."""
    return x.contiguous() if repeat == 1 else x.repeat_interleave(repeat, dim=1)


def _gather(dx: torch.Tensor, repeat: int) -> torch.Tensor:
    """The adjoint of _spread."""
    if repeat == 1:
        return dx
    return dx.view(dx.shape[0], -1, repeat, dx.shape[2]).sum(dim=2)


def _sdpa_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int], scale: float
) -> torch.Tensor:
    """torch's own attention per sequence, for devices without the CPU kernel."""
    repeat = q.shape[1] // k.shape[1]
    k, v = _spread(k, repeat), _spread(v, repeat)
    sizes = list(lengths)
    outputs = [
        F.scaled_dot_product_attention(
            a.transpose(0, 1)[None], b.transpose(0, 1)[None], c.transpose(0, 1)[None], is_causal=True, scale=scale
        )[0].transpose(0, 1)
        for a, b, c in zip(*(torch.split_with_sizes(t, sizes) for t in (q, k, v)), strict=True)
    ]
    return torch.cat(outputs)
