"""Where each weight of an adapter lies in the slot's flat buffers.

One flat fp32 buffer per purpose (weights, window, moments) makes snapshot, restore, clip,
step, digest and collectives one operation each. A rank's buffer has two regions: first what is
whole on every tensor-parallel rank, then this rank's shards. A gradient in the first region is
a partial sum until it is added over the tensor-parallel ranks (see windows.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from services.trainer.engine import Layout
from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.lora.targets import Group, GroupKey, Part, adapter_groups


@dataclass(frozen=True, slots=True)
class Entry:
    """One weight: this rank's `shape` at `offset`; `full_shape` is cut along `cut` (None: whole).

    `transposed`: B lies in the buffer as [r, out]. A row of a few numbers per output is the shape
    CPU GEMMs are worst at (dB = dyᵀ h takes up to eight times as long); r long rows are not.
    """

    name: str
    offset: int
    shape: tuple[int, int]
    full_shape: tuple[int, int]
    cut: int | None
    transposed: bool

    def view(self, flat: torch.Tensor, offset: int) -> torch.Tensor:
        """The weight [..., *shape] as a view into `flat` [..., n], where it lies at `offset`."""
        rows, columns = self.shape
        return _matrix(flat, offset, columns, rows).mT if self.transposed else _matrix(flat, offset, rows, columns)


@dataclass(frozen=True, slots=True)
class GroupViews:
    """Views into one flat buffer: `a` [parts * r, in], `b` one [out, r] per part, and their transposes
    (of which `a` and `b_t` are contiguous).

    Of several buffers of one plan, stacked: the same with a leading dimension.
    """

    a: torch.Tensor
    b: tuple[torch.Tensor, ...]
    a_t: torch.Tensor
    b_t: tuple[torch.Tensor, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, a: torch.Tensor, b: tuple[torch.Tensor, ...]) -> GroupViews:
        return cls(a, b, a.mT, tuple(part.mT for part in b), tuple(part.shape[-2] for part in b))


@dataclass(frozen=True, slots=True)
class FlatPlan:
    """`size` elements; the first `replicated` of them are whole on every tensor-parallel rank.

    `sparse`: it has groups that a pass may not reach, those of experts.
    """

    rank: int
    size: int
    replicated: int
    entries: tuple[Entry, ...]
    groups: dict[GroupKey, tuple[int, tuple[int, ...]]]
    by_name: dict[str, Entry]
    sparse: bool

    def views(self, flat: torch.Tensor) -> dict[GroupKey, GroupViews]:
        """The weights of each group as views into `flat` [size] or [n, size]."""
        found = {}
        for key, (first_a, bs) in self.groups.items():
            entry = self.entries[first_a]
            rows, columns = entry.shape[0] * len(bs), entry.shape[1]
            a = _matrix(flat, entry.offset, rows, columns)
            found[key] = GroupViews.of(a, tuple(self.view(flat, self.entries[i]) for i in bs))
        return found

    def view(self, flat: torch.Tensor, entry: Entry) -> torch.Tensor:
        return entry.view(flat, entry.offset)


def _matrix(flat: torch.Tensor, offset: int, rows: int, columns: int) -> torch.Tensor:
    """[..., rows, columns] out of [..., size], as a view."""
    return flat.narrow(-1, offset, rows * columns).view(*flat.shape[:-1], rows, columns)


def plan_adapter(model: Architecture, layout: Layout, tp_size: int) -> FlatPlan:
    """The flat layout of an adapter of `layout`; equal for equal arguments."""
    return _Planner(layout.rank, tp_size).plan(list(adapter_groups(model, layout)))


class _Planner:
    def __init__(self, rank: int, tp_size: int) -> None:
        self._rank, self._tp = rank, tp_size
        self._entries: list[Entry] = []
        self._offset = 0

    def plan(self, groups: list[Group]) -> FlatPlan:
        starts: dict[GroupKey, list[int]] = {group.key: [0] * (1 + len(group.parts)) for group in groups}
        # Column-parallel A and row-parallel B first (whole), then the shards.
        for group in groups:
            self._add_b(group, starts) if group.row_parallel else self._add_a(group, starts)
        replicated = self._offset
        for group in groups:
            self._add_a(group, starts) if group.row_parallel else self._add_b(group, starts)
        return FlatPlan(
            rank=self._rank,
            size=self._offset,
            replicated=replicated,
            entries=tuple(self._entries),
            groups={key: (value[0], tuple(value[1:])) for key, value in starts.items()},
            by_name={entry.name: entry for entry in self._entries},
            sparse=any(len(key) > 2 for key in starts),
        )

    def _add_a(self, group: Group, starts: dict[GroupKey, list[int]]) -> None:
        starts[group.key][0] = len(self._entries)
        for part in group.parts:
            cut = 1 if group.row_parallel else None
            self._add(f"{part.module}.lora_A.weight", (self._rank, part.inputs), cut, transposed=False)

    def _add_b(self, group: Group, starts: dict[GroupKey, list[int]]) -> None:
        for i, part in enumerate(group.parts):
            starts[group.key][1 + i] = len(self._entries)
            self._add(_b_name(part), (part.outputs, self._rank), None if group.row_parallel else 0, transposed=True)

    def _add(self, name: str, full: tuple[int, int], cut: int | None, *, transposed: bool) -> None:
        rows, columns = full
        if cut is not None and self._tp > 1:
            rows, columns = (rows // self._tp, columns) if cut == 0 else (rows, columns // self._tp)
        self._entries.append(Entry(name, self._offset, (rows, columns), full, cut, transposed))
        self._offset += rows * columns


def _b_name(part: Part) -> str:
    return f"{part.module}.lora_B.weight"


def canonical_names(model: Architecture, layout: Layout) -> dict[str, tuple[int, ...]]:
    """PEFT name -> full shape of every weight of `layout`, in canonical order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for group in adapter_groups(model, layout):
        for part in group.parts:
            shapes[f"{part.module}.lora_A.weight"] = (layout.rank, part.inputs)
            shapes[_b_name(part)] = (part.outputs, layout.rank)
    return shapes
