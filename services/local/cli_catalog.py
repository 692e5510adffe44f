"""`tinkermesh runs` and `tinkermesh checkpoints`: what the key's tenant owns, as a client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from services.common.ids import parse_model_id
from services.common.tinker_path import parse_tinker_path
from services.local.console import StateOption, explained
from services.local.gateway_client import GatewayClient
from services.local.places import JsonOption, UrlOption, gateway
from services.local.tables import bytes_text, rows, say, show, show_json

runs_app = typer.Typer(help="Training runs of the key's tenant.", no_args_is_help=True)
checkpoints_app = typer.Typer(help="Checkpoints of the key's tenant.", no_args_is_help=True)

Json = dict[str, Any]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="Rows, the newest first")]
OffsetOption = Annotated[int, typer.Option(min=0, help="Rows left out at the beginning")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Id as runs list shows it, or a tinker:// path of the run")
]


@runs_app.command("list")
def list_runs(
    limit: LimitOption = 20,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """The newest runs first."""
    with _mesh(state_dir, url) as mesh:
        found = mesh.get(f"training_runs?limit={limit}&offset={offset}")
        if as_json:
            show_json(found)
            return
        columns = ("run", "model", ">rank", "last request", "last checkpoint")
        show(rows("", columns, [_run(run) for run in found["training_runs"]]))
        _say_more(found, offset, len(found["training_runs"]))


@runs_app.command("show")
def show_run(run: RunArgument, as_json: JsonOption = False, state_dir: StateOption = None, url: UrlOption = "") -> None:
    """One run with all its checkpoints."""
    with _mesh(state_dir, url) as mesh:
        place = f"training_runs/{_run_id(run)}"
        found = mesh.get(place)
        checkpoints = mesh.get(f"{place}/checkpoints")["checkpoints"]
        if as_json:
            show_json({**found, "checkpoints": checkpoints})
            return
        for name, value in _facts(found).items():
            say(f"{name:<13} {value}")
        show(rows("", _CHECKPOINT, [_checkpoint(one) for one in checkpoints]))


@checkpoints_app.command("list")
def list_checkpoints(
    run: Annotated[str, typer.Option(help="Of this run only: its id, or a tinker:// path in it")] = "",
    limit: LimitOption = 100,
    offset: OffsetOption = 0,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """The newest checkpoints first, of all runs or of one."""
    with _mesh(state_dir, url) as mesh:
        place = f"training_runs/{_run_id(run)}/checkpoints" if run else "checkpoints"
        found = mesh.get(f"{place}?limit={limit}&offset={offset}")
        if as_json:
            show_json(found)
            return
        show(rows("", _CHECKPOINT, [_checkpoint(one) for one in found["checkpoints"]]))
        _say_more(found, offset, len(found["checkpoints"]))


@checkpoints_app.command("delete")
def delete_checkpoints(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="tinker:// paths as checkpoints list shows them")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """Delete checkpoints for ever; only their owner's key may. Samplers that loaded one go on."""
    with explained():
        wanted = [parse_tinker_path(path, "PATH") for path in paths]
    if not yes:
        typer.confirm(f"Delete {len(wanted)} checkpoint{'s' if len(wanted) > 1 else ''} for ever?", abort=True)
    with _mesh(state_dir, url) as mesh:
        for path in wanted:
            mesh.delete(f"training_runs/{quote(path.model_id)}/checkpoints/{path.checkpoint_id}")
            say(f"deleted {path}")


@contextmanager
def _mesh(state_dir: Path | None, url: str) -> Iterator[GatewayClient]:
    with explained(), gateway(state_dir, url) as mesh:
        yield mesh


def _run_id(text: str) -> str:
    """Raises InvalidInput, UnknownId."""
    run_id = parse_tinker_path(text, "RUN").model_id if text.startswith("tinker:") else text
    parse_model_id(run_id)
    return quote(run_id)


def _run(run: Json) -> list[object]:
    last = max((one for one in _last(run) if one), key=lambda one: str(one["time"]), default=None)
    model = run["training_run_id"], run["base_model"], run["lora_rank"]
    return [*model, _minute(run["last_request_time"]), last["checkpoint_id"] if last else "-"]


def _last(run: Json) -> list[Json | None]:
    return [run["last_checkpoint"], run["last_sampler_checkpoint"]]


def _facts(run: Json) -> dict[str, object]:
    return {
        "run": run["training_run_id"],
        "base model": run["base_model"],
        "rank": run["lora_rank"],
        "owner": run["model_owner"],
        "last request": _minute(run["last_request_time"]),
    }


_CHECKPOINT = ("path", "type", ">size", "made", "ends", "public")


def _checkpoint(one: Json) -> list[object]:
    ends = _minute(one["expires_at"]) if one["expires_at"] else "never"
    size = bytes_text(one["size_bytes"])
    return [
        one["tinker_path"],
        one["checkpoint_type"],
        size,
        _minute(one["time"]),
        ends,
        "yes" if one["public"] else "",
    ]


def _minute(iso: str) -> str:
    """UTC, as the gateway says it."""
    return iso[:16].replace("T", " ")


def _say_more(found: Json, offset: int, shown: int) -> None:
    total = found["cursor"]["total_count"]
    if shown < total:
        say(f"{shown} of {total}" + (f"; --offset {offset + shown} goes on" if offset + shown < total else ""), "dim")
