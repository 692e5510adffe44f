"""What each slot holds. Equal on all ranks; only the main thread changes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterLayout

from services.common.errors import ContractViolation
from services.trainer.engine import Layout


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """`load_number` counts the loads of the slot; `clean`: nothing of an earlier model is left."""

    load_number: int = 0
    loaded: bool = False
    clean: bool = True
    layout: AdapterLayout = field(default_factory=AdapterLayout)
    optimizer_step: int = 0
    window_open: bool = False


class SlotTable:
    def __init__(self, slots: int) -> None:
        self._entries = [SlotEntry() for _ in range(slots)]

    def entry(self, slot: int) -> SlotEntry:
        """Raises ContractViolation when there is no such slot."""
        if slot >= len(self._entries):
            raise ContractViolation(f"slot {slot} does not exist; this trainer has {len(self._entries)}")
        return self._entries[slot]

    def held(self, slot: int, load_number: int) -> SlotEntry:
        """The entry of a loaded slot. Raises ContractViolation when another load is in it."""
        entry = self.entry(slot)
        if not entry.loaded or entry.load_number != load_number:
            state = f"holds load {entry.load_number}" if entry.loaded else "is empty"
            raise ContractViolation(f"slot {slot} {state}, the unit was made for load {load_number}")
        return entry

    def vacant(self, slot: int) -> SlotEntry:
        """Raises ContractViolation when the slot is loaded or was not cleaned."""
        entry = self.entry(slot)
        if entry.loaded or not entry.clean:
            raise ContractViolation(f"slot {slot} is not vacant; unload it first")
        return entry

    def unclean(self) -> int:
        """Slots that hold nothing and cannot be used until they are cleaned."""
        return sum(not entry.loaded and not entry.clean for entry in self._entries)

    def touch(self, slot: int) -> None:
        """From here on only a successful unload makes the slot vacant again."""
        self._entries[slot] = replace(self._entries[slot], clean=False)

    def fill(self, slot: int, layout: AdapterLayout, optimizer_step: int) -> SlotEntry:
        """A load into a vacant slot: a new lineage."""
        number = self._entries[slot].load_number + 1
        self._entries[slot] = SlotEntry(number, True, False, layout, optimizer_step)
        return self._entries[slot]

    def refill(self, slot: int, optimizer_step: int) -> SlotEntry:
        """A load into a loaded slot: the same lineage."""
        self._entries[slot] = replace(self._entries[slot], optimizer_step=optimizer_step, window_open=False)
        return self._entries[slot]

    def stepped(self, slot: int, *, advanced: bool) -> None:
        entry = self._entries[slot]
        self._entries[slot] = replace(entry, optimizer_step=entry.optimizer_step + advanced, window_open=False)

    def set_window(self, slot: int, window_open: bool) -> None:
        self._entries[slot] = replace(self._entries[slot], window_open=window_open)

    def vacate(self, slot: int) -> None:
        self._entries[slot] = SlotEntry(self._entries[slot].load_number)

    def states(self) -> list[pb.SlotState]:
        return [_state(number, entry) for number, entry in enumerate(list(self._entries))]


def _state(number: int, entry: SlotEntry) -> pb.SlotState:
    return pb.SlotState(
        slot=number,
        load_number=entry.load_number,
        loaded=entry.loaded,
        layout=entry.layout if entry.loaded else None,
        optimizer_step=entry.optimizer_step,
        window_open=entry.window_open,
    )


def engine_layout(layout: AdapterLayout, max_rank: int) -> Layout:
    """Raises ContractViolation: layouts were validated before they became units."""
    if not 1 <= layout.rank <= max_rank:
        raise ContractViolation(f"layout.rank {layout.rank} is not within 1..{max_rank}")
    if not (layout.train_attn or layout.train_mlp or layout.train_unembed):
        raise ContractViolation("layout trains nothing: set train_attn, train_mlp or train_unembed")
    return Layout(layout.rank, layout.alpha, layout.train_attn, layout.train_mlp, layout.train_unembed)
