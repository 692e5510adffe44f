"""Tables and words that the commands share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.local.console import console

UNFOLDED = Console(width=400)


def rows(title: str, columns: Sequence[str], cells: Sequence[Sequence[object]]) -> RenderableType:
    """A column whose name begins with ">" is aligned to the right.

    Every cell is plain text: names of tenants and models are no markup.
    """
    made = Table(box=None, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column[0] == ">" else "left"
        made.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    for row in cells:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return Group(Text(title, style="bold"), made) if title else made


def show(*parts: RenderableType) -> None:
    """A pipe or file gets lines as long as they need to be, so that ids are never cut."""
    (console if console.is_terminal else UNFOLDED).print(*parts, highlight=False)


def say(text: str | Text, style: str = "") -> None:
    """One line as it is."""
    console.print(text, style=style or None, markup=False, emoji=False, highlight=False, soft_wrap=True)


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def bytes_text(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def age_text(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def clock_text(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
