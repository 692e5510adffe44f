"""`tinkermesh doctor`: what is wrong around a mesh, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from services.common.findings import Finding, Level
from services.local.cli_tenancy import SchedulerOption
from services.local.console import StateOption, explained
from services.local.doctor.examine import examine
from services.local.doctor.target import REDIS_URL, Options, resolve
from services.local.places import JsonOption, UrlOption, directory
from services.local.tables import say, show_json

STYLES: dict[Level, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
WIDTH = 20


def doctor(
    deep: Annotated[bool, typer.Option("--deep", help="Also import the engines, which takes a minute or so")] = False,
    model: Annotated[str, typer.Option(help="Directory of the base model; default: the mesh's")] = "",
    store: Annotated[str, typer.Option(help="Root of the shared store; default: the mesh's")] = "",
    redis: Annotated[str, typer.Option(help=f"redis:// address without a password; default: ${REDIS_URL}")] = "",
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
    url: UrlOption = "",
) -> None:
    """Look for what is wrong around a mesh, running or not, and say what to do; exit code 1 when there is an error."""
    options = Options(state_dir=state_dir, scheduler=scheduler, url=url, redis=redis, store=store, model=model)
    with explained():
        target = resolve(options, directory(state_dir))
        found: list[Finding] = []
        for finding in examine(target, deep=deep):
            found.append(finding)
            if not as_json:
                _tell(finding)
        errors = sum(one.level == "error" for one in found)
        if as_json:
            show_json({"errors": errors, "findings": msgspec.to_builtins(found)})
        else:
            _sum_up(found, errors)
        raise typer.Exit(1 if errors else 0)


def _tell(finding: Finding) -> None:
    line = Text(f"{finding.level:<8} {finding.check:<{WIDTH}} {finding.text}")
    line.stylize(STYLES[finding.level], 0, len(finding.level))
    say(line)
    if finding.remedy:
        say(f"{'':<{WIDTH + 9}} -> {finding.remedy}", "dim" if finding.level == "note" else "")


def _sum_up(found: Sequence[Finding], errors: int) -> None:
    warnings = sum(one.level == "warning" for one in found)
    if not errors and not warnings:
        say(f"{len(found)} findings, nothing to do", "green")
        return
    say(f"{errors} errors, {warnings} warnings", STYLES["error" if errors else "warning"])
