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


class PassGradients:
    """The gradients of one pass, not yet in any window."""

    def __init__(self, table: SlotTable, *, wanted: bool) -> None:
        self._table, self.wanted = table, wanted
        self._buffers: dict[int, Flat] = {}

    def segments(self, batch: MicroBatch) -> list[Segment]:
        """Routes the micro-batch; the first segment of a slot in this pass overwrites its buffer."""
        return [self._segment(*span) for span in batch.slot_spans()]

    def _segment(self, number: int, start: int, end: int) -> Segment:
        slot = self._table.get(number)
        if not self.wanted:
            return Segment(slot, start, end, None, first=False)
        first = number not in self._buffers
        if first:
            self._buffers[number] = slot.take_buffer()
        return Segment(slot, start, end, self._buffers[number], first=first)

    def commit(self, slots: Iterable[int]) -> None:
        """Add to the windows of `slots`: those with a datum in the pass, on this rank or another."""
        for number in slots:
            slot = self._table.get(number)
            buffer = self._buffers.pop(number, None)
            if buffer is None:
                buffer = slot.take_buffer()
                buffer.tensor.zero_()
            if slot.window is None:
                slot.window = buffer
            else:
                slot.window.tensor.add_(buffer.tensor)
                slot.give_buffer(buffer)

    def discard(self) -> None:
        """Forget the pass; every window stays what it was."""
        for number, buffer in self._buffers.items():
            self._table.get(number).give_buffer(buffer)
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
