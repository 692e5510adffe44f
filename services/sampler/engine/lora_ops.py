"""LoRA deltas on a CPU as one pair of matrix products per adapter in the batch.

vLLM's CPU operations copy the adapter's matrices once per token: a prompt of 1,000 tokens
on a 135M model moves tens of gigabytes. Here the rows of one adapter go through it together,
and the base model's rows, whose adapter is zero, are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from services.sampler.engine.zero_adapter import BASE_ENGINE_ID

Rows = slice | torch.Tensor
Group = tuple[int, Rows]
ALL = slice(None)


def install(worker: Any) -> None:
    """Replaces the operations of the worker's LoRA wrapper; called before the first request."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    wrapper = lora_wrapper(worker.model_runner)
    if type(wrapper) is PunicaWrapperCPU:
        GroupedOps(wrapper).install()


def lora_wrapper(runner: Any) -> Any:
    return runner.get_model().logits_processor.punica_wrapper


def add_delta(y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> None:
    """y [n, >= out] += scale · x [n, in] · aᵀ · bᵀ with a [r, in], b [out, r]."""
    delta = (x.to(a.dtype) @ a.T) @ b.T
    y[:, : b.shape[0]].add_(delta, alpha=scale)


def group_rows(slots: torch.Tensor, skipped: int | None) -> list[Group]:
    """Per slot in `slots` [n] its rows; those without a slot (-1) and of `skipped` are left out."""
    groups: list[Group] = []
    for slot in sorted(set(slots.tolist())):
        if slot < 0 or slot == skipped:
            continue
        rows = (slots == slot).nonzero().flatten()
        first, last = int(rows[0]), int(rows[-1])
        contiguous = last - first + 1 == len(rows)
        groups.append((slot, slice(first, last + 1) if contiguous else rows))
    return groups


class GroupedOps:
    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._update: Callable[..., None] = wrapper.update_metadata
        self._tokens: list[Group] = []
        self._samples: list[Group] = []

    def install(self) -> None:
        self._wrapper.update_metadata = self.update_metadata
        self._wrapper.add_lora_linear = self.add_lora_linear
        self._wrapper.add_lora_logits = self.add_lora_logits

    def update_metadata(self, mapping: Any, lora_index_to_id: list[int | None], *rest: Any, **named: Any) -> None:
        self._update(mapping, lora_index_to_id, *rest, **named)
        zero = lora_index_to_id.index(BASE_ENGINE_ID) if BASE_ENGINE_ID in lora_index_to_id else None
        self._tokens = group_rows(self._wrapper.token_lora_indices, zero)
        self._samples = group_rows(self._wrapper.sampler_indices, zero)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: Sequence[torch.Tensor],
        lora_b_stacked: Sequence[torch.Tensor],
        scale: float,
        output_slices: Sequence[int],
        **_: Any,
    ) -> None:
        """y [n, sum(slices)]; per slice A [slots, 1, r, in] and B [slots, 1, slice, r]."""
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        for slot, rows in self._tokens:
            x_rows, start = x[rows], 0
            for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                part = y[:, start : start + width]
                _add_rows(part, rows, x_rows, a[slot, 0], b[slot, 0], scale)
                start += width

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **_: Any,
    ) -> None:
        y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        for slot, rows in self._samples:
            _add_rows(y, rows, x[rows], lora_a_stacked[slot, 0], lora_b_stacked[slot, 0], scale)


def _add_rows(
    y: torch.Tensor, rows: Rows, x_rows: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float
) -> None:
    if isinstance(rows, slice):
        add_delta(y[rows], x_rows, a, b, scale)
        return
    picked = y[rows]
    add_delta(picked, x_rows, a, b, scale)
    y[rows] = picked
