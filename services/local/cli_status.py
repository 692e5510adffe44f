"""`tinkermesh status`: the whole mesh at a glance, once or as long as one looks."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from services.common.errors import Unavailable
from services.local import status_view
from services.local.admin_client import AdminClient, admin
from services.local.cli_tenancy import SchedulerOption
from services.local.console import StateOption, console, explained
from services.local.places import JsonOption, directory
from services.local.tables import show, show_json

LIVE_MODELS = 20

EverySeconds = Annotated[float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two looks")]


def status(
    pool: Annotated[str, typer.Option(help="This pool only")] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Look once; the default where the output is no terminal")
    ] = False,
    as_json: JsonOption = False,
    every: EverySeconds = 1.0,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Pools and their leases, trainers, samplers, slots, queues and durable points, kept current until Ctrl-C."""
    with explained(), admin(directory(state_dir), scheduler) as mesh:
        if as_json:
            show_json(mesh.overview(pool).as_json())
        elif once or not console.is_terminal:
            show(status_view.overview(mesh.overview(pool)))
        else:
            _follow(mesh, pool, every)


def _follow(mesh: AdminClient, pool: str, every: float) -> None:
    shown: RenderableType = status_view.overview(mesh.overview(pool), LIVE_MODELS)
    with suppress(KeyboardInterrupt), Live(shown, console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every)
            try:
                shown = status_view.overview(mesh.overview(pool), LIVE_MODELS)
                live.update(shown, refresh=True)
            except Unavailable as error:  # the last look stays, and says that it is old
                live.update(Group(Text(f"no answer: {error.message}", style="bold red"), shown), refresh=True)
