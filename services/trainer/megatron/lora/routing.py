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
    """One segment's work in one linear layer."""

    start: int
    end: int
    scaling: float
    rank: int
    weights: GroupViews
    gradients: GroupViews | None
    beta: float


class Routing:
    """Holds the segments of the micro-batch in flight; one per engine.

    Autograd nodes capture their deltas in forward, so a backward never reads this object.
    """

    def __init__(self) -> None:
        self._segments: Sequence[Segment] = ()

    @contextmanager
    def use(self, segments: Sequence[Segment]) -> Iterator[None]:
        self._segments = segments
        try:
            yield
        finally:
            self._segments = ()

    def deltas(self, key: GroupKey) -> list[Delta]:
        """The segments whose adapter has weights in group `key`, in token order."""
        return [_delta(segment, key) for segment in self._segments if key in segment.slot.compute.groups]


def _delta(segment: Segment, key: GroupKey) -> Delta:
    slot = segment.slot
    return Delta(
        segment.start,
        segment.end,
        slot.scaling,
        slot.layout.rank,
        slot.compute.groups[key],
        segment.gradients.groups[key] if segment.gradients is not None else None,
        0.0 if segment.first else 1.0,
    )
