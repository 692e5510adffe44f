"""What one trainer call will do, in terms of commands and slots."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.core.seats import LogEntry, ReplayQueue
from services.scheduler.core.view import ModelQueue, QueuedCommand


@dataclass(frozen=True, slots=True)
class PackedItem:
    """Datums [first, first + count) of one batch command."""

    queue: ModelQueue
    command: QueuedCommand
    first: int
    count: int

    @property
    def cost(self) -> int:
        return sum(self.command.costs[self.first : self.first + self.count])


@dataclass(frozen=True, slots=True)
class PassPlan:
    """One packed pass: items of equal pack key, sorted by slot."""

    pack_key: str
    items: tuple[PackedItem, ...]


@dataclass(frozen=True, slots=True)
class BarrierStep:
    queue: ModelQueue
    command: QueuedCommand


@dataclass(frozen=True, slots=True)
class OptimPlan:
    """Ready optimizer steps of different models in one call, sorted by slot."""

    steps: tuple[BarrierStep, ...]


@dataclass(frozen=True, slots=True)
class SinglePlan:
    """A create, save, load or snapshot; `slot` is the model's own, or the one a create will take."""

    step: BarrierStep
    slot: int


@dataclass(frozen=True, slots=True)
class UnloadPlan:
    slot: int


@dataclass(frozen=True, slots=True)
class SeatPlan:
    """A free slot is filled with the base of an unseated model."""

    model_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class ReplayStep:
    queue: ReplayQueue
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Entries of one logged unit, formed again."""

    steps: tuple[ReplayStep, ...]


@dataclass(frozen=True, slots=True)
class DurablePlan:
    model_id: str
    slot: int
    load_number: int


@dataclass(frozen=True, slots=True)
class PagePlan:
    """A live model gives up its slot; no unit, the unload follows."""

    model_id: str


RecoveryPlan = SeatPlan | ReplayPlan | DurablePlan
Plan = PassPlan | OptimPlan | SinglePlan | UnloadPlan | RecoveryPlan | PagePlan
