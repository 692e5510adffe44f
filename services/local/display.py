"""What `tinkermesh up` shows: progress while starting, one table when ready, and whom it lets in."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
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


class Milestones:
    """Progress where nothing can be redrawn (a file, a pipe): one line when it begins and one per ready child."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()

    def begin(self, children: Sequence[Child]) -> None:
        self._say(f"starting the mesh: {', '.join(child.spec.name for child in children)}")

    def ready(self, child: Child) -> None:
        self._say(f"{child.spec.name} is ready after {time.monotonic() - self._began:.0f} s")

    def _say(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


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


def exposure_lines(host: str, api_key: str) -> list[str]:
    """A warning when others than this machine's users reach the gateway: the local key is no secret."""
    if host in ("127.0.0.1", "localhost"):
        return []
    known = f"everyone knows the key {api_key}: revoke it, or keep the port behind a firewall"
    return [f"{host} may be reached by others, and {known}"]


def failure_lines(child: Child) -> list[str]:
    last = child.last_lines()
    return [f"last lines of {child.spec.log_file}:", *(f"  {line}" for line in last)] if last else []
