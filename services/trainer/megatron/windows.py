"""Gradient windows: a pass adds all of its gradients to its slots' windows, or none.

A pass writes into buffers of its own, so a window is untouched, bit by bit, until `commit`,
which cannot fail half-way: it only adds or swaps buffers. On each rank a window is a partial
sum over data-parallel ranks and, for weights that are whole on every tensor-parallel rank,
over those too; `reduced` completes it, once per optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from services.trainer.megatron.lora.routing import Segment
from services.trainer.megatron.lora.slots import Flat, Slot, SlotTable
from services.trainer.megatron.packing import MicroBatch
from services.trainer.megatron.runtime import Runtime

# Up to here the calls of small products cost more than their arithmetic, and one batched
# product for a run of slots is cheaper; above it a slot's products are worth their own calls.
BATCHED_TOKENS = 64

Span = tuple[int, int, int]


class PassGradients:
    """The gradients of one pass, not yet in any window."""

    def __init__(self, table: SlotTable, *, wanted: bool) -> None:
        self._table, self.wanted = table, wanted
        self._buffers: dict[int, Flat] = {}

    def segments(self, batch: MicroBatch) -> list[Segment]:
        """Routes the micro-batch; the first segment of a slot in this pass overwrites its buffer."""
        return [
            self._run(run) if len(run) > 1 else self._segment(*run[0]) for run in self._runs(list(batch.slot_spans()))
        ]

    def _runs(self, spans: list[Span]) -> list[list[Span]]:
        """Neighbouring slots that can share batched products; a span that cannot stands alone."""
        runs: list[list[Span]] = []
        for span in spans:
            if runs and self._joins(runs[-1][-1], span):
                runs[-1].append(span)
            else:
                runs.append([span])
        return runs

    def _joins(self, left: Span, right: Span) -> bool:
        slot, neighbour = self._table.get(left[0]), self._table.get(right[0])
        return (
            right[0] == left[0] + 1
            and slot.layout == neighbour.layout
            and slot.compute is slot.weights
            and slot.free_buffer == neighbour.free_buffer
            and self._table.arena(left[0]).stacked
            and right[2] - right[1] == left[2] - left[1] <= BATCHED_TOKENS
            and (left[0] in self._buffers) == (right[0] in self._buffers)
        )

    def _run(self, spans: list[Span]) -> Segment:
        number, slot = spans[0][0], self._table.get(spans[0][0])
        arena = self._table.arena(number)
        singles = tuple(self._segment(*span) for span in spans)
        return Segment(
            spans[0][1],
            spans[-1][2],
            slot.scaling,
            arena.weights(number, len(spans)),
            arena.gradients(slot.free_buffer, number, len(spans)) if self.wanted else None,
            first=singles[0].first,
            singles=singles,
        )

    def _segment(self, number: int, start: int, end: int) -> Segment:
        slot = self._table.get(number)
        if not self.wanted:
            return Segment(start, end, slot.scaling, slot.compute.groups, None, first=False)
        first = number not in self._buffers
        buffer = self._buffers.setdefault(number, slot.buffers[slot.free_buffer])
        if first and slot.plan.sparse:
            # Experts without a token write nothing: what they leave must be zero.
            buffer.tensor.zero_()
            first = False
        return Segment(start, end, slot.scaling, slot.compute.groups, buffer.groups, first=first)

    def commit(self, slots: Iterable[int]) -> None:
        """Add to the windows of `slots`: those with a datum in the pass, on this rank or another."""
        for number in slots:
            slot = self._table.get(number)
            buffer = self._buffers.pop(number, None)
            if buffer is None:
                buffer = slot.buffers[slot.free_buffer]
                buffer.tensor.zero_()
            if slot.window is None:
                slot.window = buffer
            else:
                slot.window.tensor.add_(buffer.tensor)

    def discard(self) -> None:
        """Forget the pass; every window stays what it was."""
        self._buffers.clear()


def reduced(slot: Slot, runtime: Runtime) -> torch.Tensor:
    """The slot's complete gradient [plan.size] of this rank; zeros when no window is open.

    Collective over all ranks. May be the window itself: the caller consumes it.
    """
    if slot.window is None:
        return torch.zeros_like(slot.weights.tensor)
    gradient = slot.window.tensor
    runtime.sum_over_tp(gradient[: slot.plan.replicated])
    return runtime.sum_over_dp(gradient)
