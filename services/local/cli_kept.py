"""`tinkermesh snapshots` and `gc`: what samplers hold, and what the sweepers will delete."""

from __future__ import annotations

from typing import Annotated

import typer
from tinkermesh.v1 import admin_pb2 as pb

from services.local.admin_client import admin, as_dict
from services.local.cli_tenancy import SchedulerOption
from services.local.console import StateOption, explained
from services.local.places import JsonOption, directory
from services.local.tables import bytes_text, clock_text, rows, say, show, show_json

HOUR = 3600
SNAPSHOT = ("pool", "sampler", "snapshot", ">in use", ">loads")
GARBAGE = ("pool", "kind", ">total", "subject", ">size", "due")

PoolOption = Annotated[str, typer.Option(help="This pool only")]


def snapshots(
    pool: PoolOption = "", as_json: JsonOption = False, state_dir: StateOption = None, scheduler: SchedulerOption = ""
) -> None:
    """Snapshots that are loaded in each sampler now, as the samplers themselves say."""
    with explained(), admin(directory(state_dir), scheduler) as mesh:
        found = mesh.snapshots(pool)
        if as_json:
            show_json(as_dict(found))
            return
        show(rows("", SNAPSHOT, [row for sampler in found.samplers for row in _resident(sampler)]))
        for sampler in found.samplers:
            if sampler.problem:
                say(f"{sampler.sampler_id} does not say: {sampler.problem}", "red")


def gc(
    within: Annotated[
        float, typer.Option(min=0, max=8760, help="Also what will be due in so many hours unless somebody uses it")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Subjects named of each kind")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="What this command does anyway: it only looks")] = True,
    pool: PoolOption = "",
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """What the sweepers will delete or close next. They do so by themselves: this only looks."""
    with explained(), admin(directory(state_dir), scheduler) as mesh:
        found = mesh.garbage(pool, within_seconds=int(within * HOUR), limit=limit)
        if as_json:
            show_json(as_dict(found))
            return
        if not found.reports:
            say("nothing is due")
            return
        show(rows("", GARBAGE, [row for report in found.reports for row in _garbage(report)]))


def _resident(sampler: pb.SamplerSnapshots) -> list[list[object]]:
    return [
        [sampler.pool, sampler.sampler_id, one.path or one.name, one.in_use, one.loads] for one in sampler.snapshots
    ]


def _garbage(report: pb.GcReport) -> list[list[object]]:
    """One row a subject; what is common to them only in the first."""
    total = f"{report.total}{'+' if report.at_least else ''}"
    subjects = list(report.items) or [pb.GcItem()]
    heads = [[report.pool or "-", report.kind, total], *([["", "", ""]] * (len(subjects) - 1))]
    return [[*head, *_subject(one)] for head, one in zip(heads, subjects, strict=True)]


def _subject(item: pb.GcItem) -> list[object]:
    due = clock_text(item.due_unix_ms)[:16] if item.due_unix_ms else "now"
    return [item.subject, bytes_text(item.bytes) if item.bytes else "-", due]
