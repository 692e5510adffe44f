"""Which cells of a pool a model may go to."""

from __future__ import annotations

from collections.abc import Mapping

from services.scheduler.ports import CellTrainer


def serving(cells: Mapping[str, CellTrainer], *, but: str = "") -> tuple[str, ...]:
    """Cells, by name, whose trainer takes work."""
    return tuple(sorted(name for name, cell in cells.items() if cell.serving is not None and name != but))


def placeable(cells: Mapping[str, CellTrainer]) -> tuple[str, ...]:
    """For a new model. While no trainer takes work, those whose trainer may come back."""
    return serving(cells) or tuple(sorted(name for name, cell in cells.items() if cell.drained is None))
