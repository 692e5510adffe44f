"""What all commands share: the console, the option that names the state directory, failures as one line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.common.errors import TinkermeshError

console = Console()

DEFAULT_STATE = "default: $TINKERMESH_STATE, else tinkermesh under the user's state directory (~/.local/state)"

StateOption = Annotated[
    Path | None, typer.Option(help=f"Directory of everything that outlives a run, keys included; {DEFAULT_STATE}")
]


class explained:
    """Expected failures become one line and exit code 1; anything else is a bug and shows itself."""

    def __enter__(self) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TinkermeshError):
            stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)  # ids are full of ":train:"
            stderr.print(error.message, style="bold red", soft_wrap=True)
            raise typer.Exit(1)
