"""Which tokens of a micro-batch belong to which slot: captured by every layer's autograd node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from services.trainer.megatron.lora.plan import GroupViews
from services.trainer.megatron.lora.targets import LM_HEAD, GroupKey

Views = Mapping[GroupKey, GroupViews]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, end) of the packed micro-batch use the adapter `weights`.

    Gradients go to `gradients` (None: no backward is wanted): overwritten when `first` (the
    slot's first micro-batch of the pass), else added. A slot has at most one segment per
    micro-batch.

    With `singles`, this is a run of neighbouring slots of one layout and equally many tokens,
    whose views are stacked; `singles` are its slots one by one.
    """

    start: int
    end: int
    scaling: float
    weights: Views
    gradients: Views | None
    first: bool
    singles: tuple[Segment, ...] = ()

    @property
    def count(self) -> int:
        return max(1, len(self.singles))

    def one_by_one(self) -> tuple[Segment, ...]:
        return self.singles or (self,)

    def trains_below_head(self) -> bool:
        return any(key != LM_HEAD for key in self.weights)


@dataclass(frozen=True, slots=True)
class Delta:
    """One segment's work in one linear layer; `count` > 1: its tokens and weights are stacked."""

    start: int
    end: int
    count: int
    scaling: float
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


class Routing:
    """Holds the segments of the micro-batch in flight; one per engine.

    Autograd nodes capture their deltas in forward, so a backward never reads this object.
    """

    def __init__(self) -> None:
        self._segments: Sequence[Segment] = ()
        self._singles: Sequence[Segment] = ()
        self._lengths: tuple[int, ...] = ()

    @contextmanager
    def use(self, segments: Sequence[Segment]) -> Iterator[None]:
        """`segments` cover the micro-batch's tokens without a gap."""
        self._segments = segments
        self._singles = [single for segment in segments for single in segment.one_by_one()]
        self._lengths = tuple(segment.end - segment.start for segment in segments)
        try:
            yield
        finally:
            self._segments, self._singles, self._lengths = (), (), ()

    def deltas(self, key: GroupKey) -> Deltas:
        return Deltas(self._lengths, tuple(_delta(one, key, one.start, one.end) for one in self._segments))

    def head_deltas(self) -> list[Delta]:
        """The unembedding's, slot by slot."""
        found = [_delta(one, LM_HEAD, one.start, one.end) for one in self._singles]
        return [delta for delta in found if delta is not None]

    def owners(self, device: torch.device) -> tuple[torch.Tensor, int]:
        """int64 [T]: which slot's tokens each one is of, counted in token order; and of how many slots."""
        lengths = torch.tensor([one.end - one.start for one in self._singles])
        return torch.repeat_interleave(lengths).to(device), len(self._singles)

    def expert_deltas(self, key: GroupKey, rows: Sequence[int]) -> Deltas:
        """In a layer that sees `rows` of each slot's tokens, one slot after the other."""
        lengths, items, start = [], [], 0
        for one, count in zip(self._singles, rows, strict=True):
            if count:
                lengths.append(count)
                items.append(_delta(one, key, start, start + count))
                start += count
        return Deltas(tuple(lengths), tuple(items))


def _delta(segment: Segment, key: GroupKey, start: int, end: int) -> Delta | None:
    weights = segment.weights.get(key)
    if weights is None:
        return None
    return Delta(
        start,
        end,
        segment.count,
        segment.scaling,
        weights,
        segment.gradients[key] if segment.gradients is not None else None,
        0.0 if segment.first else 1.0,
    )
