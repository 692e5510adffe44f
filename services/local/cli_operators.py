"""`tinkermesh models`, `requests` and `trainers`: what operators change on a running mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from services.common.errors import InvalidInput, UnknownId
from services.local.admin_client import AdminClient, admin
from services.local.cli_tenancy import SchedulerOption
from services.local.console import StateOption, explained
from services.local.places import directory
from services.local.tables import say

models_app = typer.Typer(help="Models of a running mesh, of all tenants.", no_args_is_help=True)
requests_app = typer.Typer(help="Requests of a running mesh, of all tenants.", no_args_is_help=True)
trainers_app = typer.Typer(help="Trainers of a running mesh.", no_args_is_help=True)

EVICTED = {
    "unseated": "unseated {model}: it comes back into a slot when it has work",
    "closed": "closed {model}",
    "closing": "closing {model}: closed when the unit that runs has settled",
}

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Id as status shows it")]
TrainerArgument = Annotated[str, typer.Argument(metavar="TRAINER", help="Id as status shows it")]
PoolOption = Annotated[str, typer.Option(help="Its pool; default: the one that has it")]


@models_app.command("evict")
def evict_model(
    model_id: ModelArgument,
    close: Annotated[bool, typer.Option("--close", help="Close it for good instead")] = False,
    reason: Annotated[str, typer.Option(help="With --close: what its client is told")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --close")] = False,
    pool: PoolOption = "",
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Take a model out of its slot; it lives on, and comes back when it has work. With --close it ends."""
    with explained():
        if close and not reason.strip():
            raise InvalidInput("--reason: missing; the model's client is told why it was closed")
        if reason and not close:
            raise InvalidInput("--reason: only with --close; a model that leaves its slot is not told")
    if close and not yes:
        typer.confirm(f"Close {model_id} for ever?", abort=True)
    with _mesh(state_dir, scheduler) as mesh:
        state = mesh.evict(model_id, pool=pool, close=close, reason=reason)
        say(EVICTED.get(state, f"{state} {{model}}").format(model=model_id))


@requests_app.command("requeue")
def requeue_request(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="Id as tail takes it")],
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Put back a request whose trainer or sampler is gone, with the others of its unit; anything else is refused."""
    with _mesh(state_dir, scheduler) as mesh:
        count = mesh.requeue(request_id)
        say(f"{count} request{'' if count == 1 else 's'} of its unit wait{'s' if count == 1 else ''} again")


@trainers_app.command("drain")
def drain_trainer(
    trainer_id: TrainerArgument, pool: PoolOption = "", state_dir: StateOption = None, scheduler: SchedulerOption = ""
) -> None:
    """Send a trainer nothing further. Its models go to other trainers of the pool, or wait until it resumes."""
    with _mesh(state_dir, scheduler) as mesh:
        chosen = pool or _pool_of(mesh, trainer_id)
        mesh.drain(chosen, trainer_id, on=True)
        say(f"drained {trainer_id} of pool {chosen}: what runs there finishes, and nothing further is sent")


@trainers_app.command("resume")
def resume_trainer(
    trainer_id: TrainerArgument, pool: PoolOption = "", state_dir: StateOption = None, scheduler: SchedulerOption = ""
) -> None:
    """Let a drained trainer work again."""
    with _mesh(state_dir, scheduler) as mesh:
        chosen = pool or _pool_of(mesh, trainer_id)
        mesh.drain(chosen, trainer_id, on=False)
        say(f"resumed {trainer_id} of pool {chosen}")


@contextmanager
def _mesh(state_dir: Path | None, scheduler: str) -> Iterator[AdminClient]:
    with explained(), admin(directory(state_dir), scheduler) as mesh:
        yield mesh


def _pool_of(mesh: AdminClient, trainer_id: str) -> str:
    """Raises UnknownId, InvalidInput where trainers of several pools have the id."""
    found = sorted({one.pool for one in mesh.trainers() if one.trainer_id == trainer_id})
    if not found:
        raise UnknownId(f"trainer {trainer_id} is not known; tinkermesh status shows those there are")
    if len(found) > 1:
        raise InvalidInput(f"--pool: missing; pools {', '.join(found)} have a trainer {trainer_id}")
    return found[0]
