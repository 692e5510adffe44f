"""`tinkermesh jobs`: batches of sampling tasks, as docs/jobs.md describes them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from services.common.errors import InvalidInput
from services.local.console import StateOption, console, explained
from services.local.gateway_client import GatewayClient
from services.local.places import JsonOption, UrlOption, gateway
from services.local.tables import rows, say, show, show_json

jobs_app = typer.Typer(help="Batches of sampling tasks of the key's tenant.", no_args_is_help=True)

Json = dict[str, Any]
CONTROL = "/v1/control"
CREATE_SECONDS = 300.0
LOOK_SECONDS = 1.0
RESULTS_PER_PAGE = 200
OPEN = ("queued", "running", "cancelling")

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id as submit and list show it")]
NameOption = Annotated[str, typer.Option(help="A name for yourself, which list filters by")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Then watch it to its end")]


@jobs_app.command("submit")
def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="One task a line")],
    name: NameOption = "",
    base_model: Annotated[str, typer.Option(help="What is sampled from; default: the only one there is")] = "",
    watch: WatchOption = False,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """Make a job of the tasks in a file."""
    with _mesh(state_dir, url) as mesh:
        _made(mesh, {"tasks": _tasks(file), "name": name, "base_model": base_model}, watch, as_json)


@jobs_app.command("continue")
def go_on(
    job: JobArgument,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="New tokens; default: all that fit")] = None,
    task_id: Annotated[str | None, typer.Option(help="Of this task only; default: all tasks of the job")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="The same, by its index")] = None,
    sample_index: Annotated[int | None, typer.Option(min=0, help="Which sample, of tasks that have several")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Default: the source's")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the source's")] = None,
    lora_path: Annotated[
        str | None,
        typer.Option(help="tinker:// path of a snapshot, or base; default: the source's"),
    ] = None,
    name: NameOption = "",
    watch: WatchOption = False,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """Go on from what a job has generated, also while it runs or after it was cancelled."""
    reference = {"job_id": job, "task_id": task_id, "index": index, "sample_index": sample_index}
    body: Json = {"continue_from": reference, "max_tokens": max_tokens, "name": name}
    body |= {"temperature": temperature, "top_p": top_p}
    if lora_path is not None:
        body["lora_path"] = None if lora_path == "base" else lora_path
    with _mesh(state_dir, url) as mesh:
        _made(mesh, body, watch, as_json)


@jobs_app.command("list")
def list_jobs(
    state: Annotated[str, typer.Option(help="queued, running, cancelling, done, partial, failed or cancelled")] = "",
    name: Annotated[str, typer.Option(help="Jobs of this name only")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rows, the newest first")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Rows left out at the beginning")] = 0,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """The newest jobs first."""
    query = urlencode({"state": state, "name": name, "limit": limit, "offset": offset})
    with _mesh(state_dir, url) as mesh:
        found = mesh.get(f"jobs?{query}")
    if as_json:
        show_json(found)
        return
    show(rows("", _COLUMNS, [_row(one) for one in found["jobs"]]))
    total, shown = found["cursor"]["total_count"], len(found["jobs"])
    if shown < total:
        say(f"{shown} of {total}" + (f"; --offset {offset + shown} goes on" if offset + shown < total else ""), "dim")


@jobs_app.command("show")
def show_job(job: JobArgument, as_json: JsonOption = False, state_dir: StateOption = None, url: UrlOption = "") -> None:
    """One job."""
    with _mesh(state_dir, url) as mesh:
        _show(mesh.get(_place(job)), as_json)


@jobs_app.command("watch")
def watch_job(job: JobArgument, state_dir: StateOption = None, url: UrlOption = "") -> None:
    """A progress bar until it has ended; the exit code is 0 when all of its tasks are done."""
    with _mesh(state_dir, url) as mesh:
        _watch(mesh, job)


@jobs_app.command("results")
def results(
    job: JobArgument,
    out: Annotated[Path | None, typer.Option(help="File for the lines; default: the output")] = None,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """Settled tasks in their order, one JSON object a line."""
    with _mesh(state_dir, url) as mesh:
        if out is None:
            for line in _results(mesh, job):
                typer.echo(line)
            return
        say(f"{_write(out, _results(mesh, job))} results in {out}")


@jobs_app.command("cancel")
def cancel_job(job: JobArgument, state_dir: StateOption = None, url: UrlOption = "") -> None:
    """What runs ends with what it has generated; nothing new begins."""
    with _mesh(state_dir, url) as mesh:
        say(f"{job} is {mesh.post(f'{_place(job)}/cancel', None)['state']}")


@jobs_app.command("delete")
def delete_job(
    job: JobArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """Cancel it, and delete it with all its results. Continuations of it stay as they are."""
    if not yes:
        typer.confirm(f"Delete {job} and its results for ever?", abort=True)
    with _mesh(state_dir, url) as mesh:
        mesh.delete(_place(job))
        say(f"deleted {job}")


@contextmanager
def _mesh(state_dir: Path | None, url: str) -> Iterator[GatewayClient]:
    with explained(), gateway(state_dir, url, prefix=CONTROL, timeout_seconds=CREATE_SECONDS) as mesh:
        yield mesh


def _tasks(file: Path) -> list[Json]:
    """Raises InvalidInput naming the line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from error
    tasks = []
    lines = text.split("\n")  # what else splitlines() cuts at may stand in a text of JSON
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"{file}, line {number} is no JSON: {error}") from error
        if not isinstance(task, dict):
            raise InvalidInput(f"{file}, line {number} is no object")
        tasks.append(task)
    return tasks


def _made(mesh: GatewayClient, body: Json, watch: bool, as_json: bool) -> None:
    made = mesh.post("jobs", body)
    if watch:
        say(made["job_id"])
        _watch(mesh, made["job_id"])
    elif as_json:
        show_json(made)
    else:
        say(f"{made['job_id']} has {_count(made['tasks']['total'])}")


def _watch(mesh: GatewayClient, job: str) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        while True:
            found = mesh.get(_place(job))
            tasks = found["tasks"]
            settled = tasks["done"] + tasks["failed"] + tasks["cancelled"]
            progress.update(bar, description=found["state"], total=tasks["total"], completed=settled)
            if found["state"] not in OPEN:
                break
            time.sleep(LOOK_SECONDS)
    say(_summary(found))
    if found["state"] != "done":
        raise typer.Exit(1)


def _summary(found: Json) -> str:
    tasks, usage = found["tasks"], found["usage"]
    parts = [f"{tasks[name]} {name}" for name in ("done", "failed", "cancelled") if tasks[name]]
    return f"{found['state']}: {', '.join(parts)} of {_count(tasks['total'])}, {usage['completion_tokens']} tokens"


def _results(mesh: GatewayClient, job: str) -> Iterator[str]:
    offset: int | None = 0
    while offset is not None:
        page = mesh.get(f"{_place(job)}/results?offset={offset}&limit={RESULTS_PER_PAGE}")
        yield from (json.dumps(one, ensure_ascii=False) for one in page["results"])
        offset = page["next_offset"]


def _write(out: Path, lines: Iterable[str]) -> int:
    """How many lines there were. Raises InvalidInput."""
    count = 0
    try:
        with out.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
    except OSError as error:
        raise InvalidInput(f"--out: {out} cannot be written: {error.strerror}") from error
    return count


def _show(found: Json, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    for name in ("job_id", "name", "base_model", "state", "created_at", "started_at", "ended_at", "expires_at"):
        say(f"{name:<17} {found[name] or '-'}")
    for name, count in {**found["tasks"], **found["usage"]}.items():
        say(f"{name:<17} {count}")


_COLUMNS = ("job", "name", "state", ">tasks", ">done", ">failed", ">tokens", "made")


def _row(one: Json) -> list[object]:
    tasks = one["tasks"]
    made = one["created_at"][:16].replace("T", " ")
    numbers = [tasks["total"], tasks["done"], tasks["failed"], one["usage"]["completion_tokens"]]
    return [one["job_id"], one["name"] or "-", one["state"], *numbers, made]


def _count(tasks: int) -> str:
    return f"{tasks} task" if tasks == 1 else f"{tasks} tasks"


def _place(job: str) -> str:
    return f"jobs/{quote(job, safe='')}"
