"""Cells: the trainers of one pool side by side, each with slots of its own."""

from __future__ import annotations

import re

FIRST_CELL = "0"
"""The only one of a pool with one trainer."""

_CELL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def is_cell_name(text: str) -> bool:
    return _CELL.fullmatch(text) is not None


def cell_suffix(cell: str, separator: str) -> str:
    """What distinguishes names that belong to the cell: nothing for the first one."""
    return "" if cell == FIRST_CELL else f"{separator}{cell}"
