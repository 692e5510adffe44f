"""Adapter slots: the weights, optimizer state and gradient window of the model in each."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from services.common.errors import ContractViolation
from services.trainer.engine import Layout
from services.trainer.megatron.lora.plan import FlatPlan, GroupViews
from services.trainer.megatron.lora.targets import GroupKey


class Flat:
    """One flat buffer [plan.size] with its views by group."""

    def __init__(self, plan: FlatPlan, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.groups: dict[GroupKey, GroupViews] = plan.views(tensor)


@dataclass(slots=True)
class Slot:
    """`weights` are the fp32 masters; `compute` is what the pass reads (the masters, or a low-precision copy).

    `window` is None while no gradient is pending. `spare` is a buffer kept for the next pass.
    """

    layout: Layout
    plan: FlatPlan
    weights: Flat
    compute: Flat
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    step: int = 0
    window: Flat | None = None
    spare: list[Flat] = field(default_factory=list)

    @property
    def scaling(self) -> float:
        return self.layout.alpha / self.layout.rank

    def take_buffer(self) -> Flat:
        """An uninitialised gradient buffer."""
        if self.spare:
            return self.spare.pop()
        return Flat(self.plan, torch.empty_like(self.weights.tensor))

    def give_buffer(self, buffer: Flat) -> None:
        if not self.spare:
            self.spare.append(buffer)

    def clear_window(self) -> None:
        if self.window is not None:
            self.give_buffer(self.window)
            self.window = None

    def refresh_compute(self) -> None:
        """After the masters changed: bring the low-precision copy up to date."""
        if self.compute is not self.weights:
            self.compute.tensor.copy_(self.weights.tensor)


class SlotTable:
    """slot number -> Slot; an absent number is an empty slot.

    The weights of slots of one layout are rows of one arena, so that neighbours can be
    multiplied in one batched product. Rows of empty slots are never touched, so cost no memory.
    """

    def __init__(self, slots: int, device: torch.device, compute_dtype: torch.dtype) -> None:
        self._size, self._device, self._dtype = slots, device, compute_dtype
        self._slots: dict[int, Slot] = {}
        self._arenas: dict[Layout, torch.Tensor] = {}

    def create(self, slot: int, layout: Layout, plan: FlatPlan) -> Slot:
        """A slot of zeros in place of whatever was there."""
        self.clear(slot)
        if layout not in self._arenas:
            self._arenas[layout] = torch.empty((self._size, plan.size), dtype=torch.float32, device=self._device)
        row = self._arenas[layout][slot].zero_()
        weights = Flat(plan, row)
        low = self._dtype != torch.float32
        compute = Flat(plan, row.to(self._dtype)) if low else weights
        created = Slot(layout, plan, weights, compute, torch.zeros_like(row), torch.zeros_like(row))
        self._slots[slot] = created
        return created

    def clear(self, slot: int) -> None:
        self._check(slot)
        old = self._slots.pop(slot, None)
        if old is not None and all(other.layout != old.layout for other in self._slots.values()):
            del self._arenas[old.layout]

    def stacked(self, first: int, count: int) -> torch.Tensor:
        """The weights [count, plan.size] of neighbouring slots of one layout, without a copy."""
        return self._arenas[self.get(first).layout][first : first + count]

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
