"""Adapter slots: the weights, optimizer state and gradient window of the model in each."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass

import torch

from services.common.errors import ContractViolation
from services.trainer.engine import Layout
from services.trainer.megatron.lora.plan import FlatPlan, GroupViews
from services.trainer.megatron.lora.targets import GroupKey

FLOAT_BYTES = 4
BUFFERS = 3
"""Of a slot in its arena: weights, and two for gradients."""
MOMENTS = 2


def slot_bytes(plan: FlatPlan, compute_dtype: torch.dtype) -> int:
    """What one slot takes of a rank's memory once everything of it is in use."""
    copy = 0 if compute_dtype == torch.float32 else compute_dtype.itemsize
    return plan.size * (FLOAT_BYTES * (BUFFERS + MOMENTS) + copy)


class Flat:
    """One flat buffer [plan.size] with its views by group."""

    def __init__(self, plan: FlatPlan, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.groups: dict[GroupKey, GroupViews] = plan.views(tensor)


@dataclass(slots=True)
class Slot:
    """`weights` are the fp32 masters; `compute` is what the pass reads (the masters, or a low-precision copy).

    Of the two gradient `buffers`, one is the open `window` or free; a pass writes to a free one.
    """

    layout: Layout
    plan: FlatPlan
    weights: Flat
    compute: Flat
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    buffers: tuple[Flat, Flat]
    step: int = 0
    window: Flat | None = None

    @property
    def scaling(self) -> float:
        return self.layout.alpha / self.layout.rank

    @property
    def free_buffer(self) -> int:
        """Index of the buffer that the next pass writes to; its content is undefined."""
        return 1 if self.window is self.buffers[0] else 0

    def clear_window(self) -> None:
        self.window = None

    def refresh_compute(self) -> None:
        """After the masters changed: bring the low-precision copy up to date."""
        if self.compute is not self.weights:
            self.compute.tensor.copy_(self.weights.tensor)


class Arena:
    """The flat buffers of all slots of one layout: row i belongs to slot i.

    So neighbours can be multiplied in one batched product without a copy. On the CPU the rows
    of empty slots cost no memory: they were never touched, or were given back. Elsewhere
    every slot gets its own.
    """

    def __init__(self, slots: int, plan: FlatPlan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        row_bytes = FLOAT_BYTES * plan.size
        self._pages = [_private_pages(slots * row_bytes) for _ in range(BUFFERS if device.type == "cpu" else 0)]
        self._stacks = tuple(
            torch.frombuffer(pages, dtype=torch.float32, count=slots * plan.size).view(slots, plan.size)
            for pages in self._pages
        )
        self._row_bytes = row_bytes
        self._views: dict[tuple[int, int, int], dict[GroupKey, GroupViews]] = {}

    def rows(self, slot: int) -> list[torch.Tensor]:
        """Uninitialised float32 [plan.size] each: weights, first and second gradient buffer."""
        if self._stacks:
            return [stack[slot] for stack in self._stacks]
        return [torch.empty(self.plan.size, dtype=torch.float32, device=self.device) for _ in range(BUFFERS)]

    def give_back(self, slot: int) -> None:
        """The memory behind an emptied slot's rows; those of every layout would add up otherwise."""
        for pages in self._pages:
            _give_back(pages, slot * self._row_bytes, self._row_bytes)

    @property
    def stacked(self) -> bool:
        return bool(self._stacks)

    def weights(self, first: int, count: int) -> dict[GroupKey, GroupViews]:
        """Stacked views of `count` neighbouring slots' weights."""
        return self._run(0, first, count)

    def gradients(self, buffer: int, first: int, count: int) -> dict[GroupKey, GroupViews]:
        return self._run(1 + buffer, first, count)

    def _run(self, stack: int, first: int, count: int) -> dict[GroupKey, GroupViews]:
        key = (stack, first, count)
        if key not in self._views:
            self._views[key] = self.plan.views(self._stacks[stack][first : first + count])
        return self._views[key]


class SlotTable:
    """slot number -> Slot; an absent number is an empty slot."""

    def __init__(self, slots: int, device: torch.device, compute_dtype: torch.dtype) -> None:
        self._size, self._device, self._dtype = slots, device, compute_dtype
        self._slots: dict[int, Slot] = {}
        self._arenas: dict[Layout, Arena] = {}

    def create(self, slot: int, layout: Layout, plan: FlatPlan) -> Slot:
        """A slot of zeros in place of whatever was there."""
        self.clear(slot)
        if layout not in self._arenas:
            self._arenas[layout] = Arena(self._size, plan, self._device)
        row, *buffers = self._arenas[layout].rows(slot)
        weights = Flat(plan, row.zero_())
        low = self._dtype != torch.float32
        compute = Flat(plan, row.to(self._dtype)) if low else weights
        first, second = (Flat(plan, buffer) for buffer in buffers)
        created = Slot(layout, plan, weights, compute, torch.zeros_like(row), torch.zeros_like(row), (first, second))
        self._slots[slot] = created
        return created

    def clear(self, slot: int) -> None:
        self._check(slot)
        old = self._slots.pop(slot, None)
        if old is None:
            return
        if all(other.layout != old.layout for other in self._slots.values()):
            del self._arenas[old.layout]
        else:
            # The rows outlive the slot: nothing of its model may stay in them.
            for flat in (old.weights, *old.buffers):
                flat.tensor.zero_()
            self._arenas[old.layout].give_back(slot)

    def arena(self, slot: int) -> Arena:
        return self._arenas[self.get(slot).layout]

    def get(self, slot: int) -> Slot:
        """Raises ContractViolation when the slot is empty."""
        self._check(slot)
        if slot not in self._slots:
            raise ContractViolation(f"slot {slot} holds no adapter")
        return self._slots[slot]

    def find(self, slot: int) -> Slot | None:
        return self._slots.get(slot)

    def _check(self, slot: int) -> None:
        if not 0 <= slot < self._size:
            raise ContractViolation(f"slot {slot} is outside 0..{self._size - 1}")


def _private_pages(size: int) -> mmap.mmap:
    """Zeros that cost memory from their first use on."""
    return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(pages: mmap.mmap, start: int, size: int) -> None:
    """The whole pages within: they are zero when they are next used. Linux alone promises that."""
    first, end = -(-start // mmap.PAGESIZE), (start + size) // mmap.PAGESIZE
    if sys.platform == "linux" and end > first:
        pages.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE)
