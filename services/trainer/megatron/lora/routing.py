"""Which tokens of a micro-batch belong to which slot: captured by every layer's autograd node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from services.trainer.megatron.lora.plan import GroupViews
from services.trainer.megatron.lora.slots import Flat, Slot
from services.trainer.megatron.lora.targets import GroupKey


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, end) of the packed micro-batch use `slot`.

    Gradients go to `gradients`: overwritten when `first` (its first micro-batch of the pass),
    else added. A slot has at most one segment per micro-batch.
    """

    slot: Slot
    start: int
    end: int
    gradients: Flat | None
    first: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """One segment's work in one linear layer; `gradients` None: no backward is wanted."""

    start: int
    end: int
    scaling: float
    rank: int
    weights: GroupViews
    gradients: GroupViews | None
    beta: float


@dataclass(frozen=True, slots=True)
class Deltas:
    """The segments' work in one linear layer, in token order.

    `lengths` cut the micro-batch's tokens into segments; `items` has one entry for each, None
    where the slot's adapter has no weights in this layer.
    """

    lengths: tuple[int, ...]
    items: tuple[Delta | None, ...]

    def present(self) -> list[Delta]:
        return [item for item in self.items if item is not None]


class Routing:
    """Holds the segments of the micro-batch in flight; one per engine.

    Autograd nodes capture their deltas in forward, so a backward never reads this object.
    """

    def __init__(self) -> None:
        self._segments: Sequence[Segment] = ()
        self._lengths: tuple[int, ...] = ()

    @contextmanager
    def use(self, segments: Sequence[Segment]) -> Iterator[None]:
        """`segments` cover the micro-batch's tokens without a gap."""
        self._segments = segments
        self._lengths = tuple(segment.end - segment.start for segment in segments)
        try:
            yield
        finally:
            self._segments, self._lengths = (), ()

    def deltas(self, key: GroupKey) -> Deltas:
        return Deltas(self._lengths, tuple(_delta(segment, key) for segment in self._segments))


def _delta(segment: Segment, key: GroupKey) -> Delta | None:
    slot = segment.slot
    weights = slot.compute.groups.get(key)
    if weights is None:
        return None
    return Delta(
        segment.start,
        segment.end,
        slot.scaling,
        slot.layout.rank,
        weights,
        segment.gradients.groups[key] if segment.gradients is not None else None,
        0.0 if segment.first else 1.0,
    )
