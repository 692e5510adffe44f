"""What `tinkermesh up` shows: progress while starting, one table when ready."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from services.local.child import Child, State

STYLES = {
    State.WAITING: "dim",
    State.STARTING: "yellow",
    State.READY: "green",
    State.RESTARTING: "red",
    State.STOPPED: "dim",
    State.FAILED: "bold red",
}


class Progress:
    """Renders anew each time rich asks, so states and seconds are current."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._began = time.monotonic()
        self._spinner = Spinner("dots")

    def __rich__(self) -> RenderableType:
        ready = sum(child.state is State.READY for child in self._children)
        seconds = time.monotonic() - self._began
        self._spinner.update(text=Text(f"starting the mesh: {ready} of {len(self._children)} ready, {seconds:.0f} s"))
        line = Text()
        for child in self._children:
            line.append(f"  {child.spec.name} ", style="bold")
            line.append(child.state.value, style=STYLES[child.state])
        return Group(self._spinner, line)


def mesh_table(children: Sequence[Child]) -> Table:
    table = Table(title="tinkermesh", title_justify="left")
    for column in ("service", "address", "health", "pid", "restarts"):
        table.add_column(column, no_wrap=True)
    for child in children:
        spec = child.spec
        health = Text(child.state.value, style=STYLES[child.state])
        table.add_row(spec.name, spec.address, health, str(child.pid or "-"), str(child.restarts))
    return table


def client_lines(environment: dict[str, str]) -> list[str]:
    """Shell lines that point the SDK at this mesh."""
    return [f"export {name}={value}" for name, value in environment.items()]


def failure_lines(child: Child) -> list[str]:
    last = child.last_lines()
    return [f"last lines of {child.spec.log_file}:", *(f"  {line}" for line in last)] if last else []
