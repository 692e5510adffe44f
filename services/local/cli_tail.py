"""`tinkermesh tail REQUEST`: what became of one request, until it is settled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Unavailable
from services.local.admin_client import AdminClient, admin, as_dict
from services.local.cli_tenancy import SchedulerOption
from services.local.console import StateOption, explained
from services.local.places import JsonOption, directory
from services.local.tables import clock_text, say, show_json

POLL_SECONDS = 0.5
SETTLED = ("done", "failed")

RequestArgument = Annotated[
    str, typer.Argument(help="Id, as the client's log, the gateway's log or ListFutures has it")
]


def tail(
    request_id: RequestArgument,
    follow: Annotated[bool, typer.Option(help="Wait until it is settled; --no-follow looks once")] = True,
    limit: Annotated[float, typer.Option("--for", min=0, max=604_800, help="Seconds to wait at most")] = 86_400.0,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """The timeline of one request, followed until it is settled; exit code 1 when it failed or is not settled."""
    with explained(), admin(directory(state_dir), scheduler) as mesh:
        report = _json(mesh, request_id, follow, limit) if as_json else _lines(mesh, request_id, follow, limit)
        raise typer.Exit(0 if report.future.state == "done" or not follow else 1)


def _json(mesh: AdminClient, request_id: str, follow: bool, limit: float) -> pb.RequestReport:
    for report in _reports(mesh, request_id, follow, limit):
        last = report
    show_json(as_dict(last))
    return last


def _lines(mesh: AdminClient, request_id: str, follow: bool, limit: float) -> pb.RequestReport:
    told: set[str] = set()
    waits = ""
    for report in _reports(mesh, request_id, follow, limit):
        if not told:
            say(_head(report), "bold")
            if report.timeline_cut:
                say("the oldest of very many events are not kept", "dim")
        for event in report.timeline:
            line = _event(event, report.timeline[0].unix_ms)
            if line not in told:
                told.add(line)
                say(line)
        if report.queue_state_reason and (said := f"{report.queue_state}: {report.queue_state_reason}") != waits:
            waits = said
            say(f"                         {said}", "dim")
        told.add("")
    if report.future.state == "failed":
        kind = types.FailureCategory.Name(report.failure.category).removeprefix("FAILURE_CATEGORY_").lower()
        say(f"{kind} error: {report.failure.message}", "red")
    elif follow and report.future.state != "done":
        say(f"not settled after {limit:g} s", "yellow")
    return report


def _reports(mesh: AdminClient, request_id: str, follow: bool, limit: float) -> Iterator[pb.RequestReport]:
    """At least one, the last one settled unless the time is over; a scheduler that is away is asked again."""
    until = time.monotonic() + limit
    yield (report := mesh.request(request_id))
    while follow and report.future.state not in SETTLED and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        with suppress(Unavailable):
            yield (report := mesh.request(request_id))


def _head(report: pb.RequestReport) -> str:
    future = report.future
    return f"{future.op} {report.seq_id} of {future.model_id}, tenant {future.tenant_id}"


def _event(event: pb.TimelineEntry, first_ms: int) -> str:
    after = f"+{(event.unix_ms - first_ms) / 1000:.3f} s"
    unit = f"unit {event.unit_id}" if event.unit_id else ""
    engine = event.trainer_id or event.sampler_id
    by = f"{'to' if event.event == 'issued' else 'by'} {engine}" if engine else ""
    ran = f"in {event.ran_ms} ms" if event.event == "executed" and event.unit_id else ""
    words = (f"{clock_text(event.unix_ms)} {after:>12}", event.event, event.outcome, event.detail, unit, by, ran)
    return " ".join(word for word in words if word)
