"""Datums -> micro-batches of packed tokens, without padding between sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from services.trainer.engine import SlotDatum


@dataclass(frozen=True, slots=True)
class Work:
    """One datum to execute: `index` in the unit; `counts` is False for a data-parallel padding copy."""

    index: int
    item: SlotDatum
    counts: bool = True


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """T packed tokens. `tokens` int64 [T]; `targets` int64, `valid` bool, `fields` float32, all [T, K].

    K is the widest datum's; `valid` is False beyond a datum's own width and for padding copies.
    """

    works: tuple[Work, ...]
    lengths: tuple[int, ...]
    tokens: torch.Tensor
    targets: torch.Tensor
    valid: torch.Tensor
    fields: dict[str, torch.Tensor]

    def spans(self) -> Iterator[tuple[Work, int, int]]:
        """(work, first token, end) of each datum."""
        start = 0
        for work, length in zip(self.works, self.lengths, strict=True):
            yield work, start, start + length
            start += length

    def slot_spans(self) -> Iterator[tuple[int, int, int]]:
        """(slot, first token, end) of each slot's tokens; the datums are sorted by slot."""
        for slot, group in groupby(self.spans(), key=lambda span: span[0].item.slot):
            spans = list(group)
            yield slot, spans[0][1], spans[-1][2]


def share_for_rank(works: Sequence[Work], dp_rank: int, dp_size: int) -> list[Work]:
    """This data-parallel rank's datums: equal counts, made up with uncounted copies of the last datum."""
    if not works:
        return []
    missing = -len(works) % dp_size
    padded = [*works, *[Work(works[-1].index, works[-1].item, counts=False)] * missing]
    each = len(padded) // dp_size
    return padded[dp_rank * each : (dp_rank + 1) * each]


def pack(works: Sequence[Work], budget: int, device: torch.device) -> Iterator[MicroBatch]:
    """Micro-batches of at most `budget` tokens in the given order; a longer datum goes alone."""
    group: list[Work] = []
    total = 0
    for work in works:
        length = work.item.datum.length
        if group and total + length > budget:
            yield _build(group, device)
            group, total = [], 0
        group.append(work)
        total += length
    if group:
        yield _build(group, device)


def _build(works: Sequence[Work], device: torch.device) -> MicroBatch:
    datums = [work.item.datum for work in works]
    width = max(datum.width for datum in datums)
    lengths = tuple(datum.length for datum in datums)
    valid = np.zeros((sum(lengths), width), dtype=bool)
    start = 0
    for work, datum in zip(works, datums, strict=True):
        valid[start : start + datum.length, : datum.width] = work.counts
        start += datum.length
    fields = {
        name: _stack([datum.fields[name] for datum in datums], width, np.float32, device) for name in datums[0].fields
    }
    return MicroBatch(
        works=tuple(works),
        lengths=lengths,
        tokens=torch.from_numpy(np.concatenate([datum.tokens for datum in datums]).astype(np.int64)).to(device),
        targets=_stack([datum.targets for datum in datums], width, np.int64, device),
        valid=torch.from_numpy(valid).to(device),
        fields=fields,
    )


def _stack(parts: Sequence[np.ndarray], width: int, dtype: type[np.generic], device: torch.device) -> torch.Tensor:
    """[L_i, K_i] parts under each other as [T, width], zero beyond each part's own width."""
    rows = np.zeros((sum(part.shape[0] for part in parts), width), dtype=dtype)
    start = 0
    for part in parts:
        rows[start : start + part.shape[0], : part.shape[1]] = part
        start += part.shape[0]
    return torch.from_numpy(rows).to(device)
