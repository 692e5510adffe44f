"""The `tinkermesh` command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from services.common.errors import InvalidInput
from services.local import default_model, demo
from services.local.cli_bench import bench
from services.local.cli_catalog import checkpoints_app, runs_app
from services.local.cli_doctor import doctor
from services.local.cli_jobs import jobs_app
from services.local.cli_kept import gc, snapshots
from services.local.cli_operators import models_app, requests_app, trainers_app
from services.local.cli_status import status
from services.local.cli_tail import tail
from services.local.cli_tenancy import keys_app, tenants_app
from services.local.console import DEFAULT_STATE, StateOption, console, explained
from services.local.settings import Durability, LocalSettings, default_state_dir
from services.local.up import run_mesh

app = typer.Typer(help="A self-hosted service that speaks the Tinker protocol.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.add_typer(tenants_app, name="tenants")
app.add_typer(runs_app, name="runs")
app.add_typer(checkpoints_app, name="checkpoints")
app.add_typer(models_app, name="models")
app.add_typer(requests_app, name="requests")
app.add_typer(trainers_app, name="trainers")
app.add_typer(jobs_app, name="jobs")
app.command()(status)
app.command()(tail)
app.command()(snapshots)
app.command()(gc)
app.command()(doctor)
app.command()(bench)

ModelOption = Annotated[
    str,
    typer.Option(
        help="Directory of the base model: Llama or Qwen3 in Hugging Face layout, with safetensors; "
        "default: SmolLM2-135M-Instruct, fetched and converted once"
    ),
]
NameOption = Annotated[
    str, typer.Option(help=f"Name clients ask for; default: the directory of --model, else {default_model.NAME}")
]
AliasOption = Annotated[
    list[str] | None, typer.Option("--alias", help="A further name of the model, such as the one a recipe asks for")
]
ThreadsOption = Annotated[
    int, typer.Option(min=0, help="Compute threads of the trainer, and as many of the sampler; 0 = one per core")
]


def _port(whose: str) -> Any:
    return typer.Option(min=0, max=65535, help=f"Port of {whose}; 0 = any free one")


def make_settings(
    *,
    model: str,
    model_name: str,
    state_dir: Path | None,
    threads: int,
    aliases: Sequence[str] | None = None,
    **rest: int | str | bool,
) -> LocalSettings:
    """Fetches the default model when none is named. Raises InvalidInput, Unavailable."""
    if rest.get("prefill_decode") and not rest.get("sampler", True):
        raise InvalidInput("--prefill-decode: there are no samplers with --no-sampler; leave one of them out")
    directory = Path(model).expanduser() if model else default_model.ensure()
    if not (directory / "config.json").is_file():
        raise InvalidInput(f"--model: {directory} is not a model directory (no config.json)")
    directory = directory.resolve()
    return LocalSettings(
        model=directory,
        model_name=model_name or (str(directory) if model else default_model.NAME),
        state_dir=(state_dir or default_state_dir()).expanduser().resolve(),
        threads=threads or os.cpu_count() or 1,
        aliases=_checked_aliases(aliases or ()),
        **rest,  # type: ignore[arg-type]
    )


def _checked_aliases(aliases: Sequence[str]) -> tuple[str, ...]:
    for alias in aliases:
        if not alias.strip() or "," in alias or ":" in alias:
            raise InvalidInput(f"--alias: {alias!r} must be a name without commas and colons")
    return tuple(alias.strip() for alias in aliases)


@app.command()
def up(
    model: ModelOption = "",
    model_name: NameOption = "",
    alias: AliasOption = None,
    state_dir: StateOption = None,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Adapters trained at once, of all clients")] = 8,
    max_rank: Annotated[int, typer.Option(min=1, max=512, help="Highest LoRA rank a client may ask for")] = 32,
    max_context: Annotated[int, typer.Option(min=16, help="Tokens of one datum or prompt with its output")] = 2048,
    threads: ThreadsOption = 0,
    sampler: Annotated[bool, typer.Option(help="Run a sampler; without one the mesh only trains")] = True,
    prefill_decode: Annotated[
        bool, typer.Option("--prefill-decode", help="Two samplers, one for prompts and one for what follows them")
    ] = False,
    gateways: Annotated[int, typer.Option(min=1, max=16, help="Gateway processes, all of them behind --port")] = 1,
    schedulers: Annotated[
        int, typer.Option(min=1, max=16, help="Scheduler processes, at --scheduler-port and 10, 20 ... above it")
    ] = 1,
    trainers: Annotated[
        int,
        typer.Option(
            min=1, max=16, help="Trainer processes, each with --slots, at --trainer-port and 10, 20 ... above"
        ),
    ] = 1,
    durability: Annotated[
        Durability,
        typer.Option(
            help="When an answer is on disk: strict = before it is given, everysec = within two seconds, off = never"
        ),
    ] = "strict",
    redis_memory: Annotated[
        int, typer.Option(min=0, help="MiB Redis may take; close to it new payloads are refused. 0 = no limit")
    ] = 0,
    metrics: Annotated[
        bool, typer.Option(help="Prometheus endpoints of all services, on ports that metrics.json in --state-dir lists")
    ] = True,
    host: Annotated[
        str, typer.Option(help="Address the gateway listens on; everything behind it stays on 127.0.0.1")
    ] = "127.0.0.1",
    port: Annotated[int, _port("the gateway, where clients connect")] = 8000,
    redis_port: Annotated[int, _port("Redis")] = 7000,
    scheduler_port: Annotated[int, _port("the first scheduler, which operators use too")] = 7001,
    trainer_port: Annotated[int, _port("the first trainer")] = 7002,
    sampler_port: Annotated[
        int, _port("the sampler, or the prefill sampler; the decode sampler listens 10 above")
    ] = 7003,
) -> None:
    """Run the whole mesh on this machine until Ctrl-C, and show what points a client at it."""
    with explained():
        settings = make_settings(
            model=model, model_name=model_name, aliases=alias, state_dir=state_dir, threads=threads, slots=slots,
            max_rank=max_rank,
            max_context=max_context, sampler=sampler, gateways=gateways, schedulers=schedulers, host=host, port=port,
            redis_port=redis_port, scheduler_port=scheduler_port, trainer_port=trainer_port, sampler_port=sampler_port,
            durability=durability, redis_memory=redis_memory, metrics=metrics, trainers=trainers,
            prefill_decode=prefill_decode,
        )  # fmt: skip
        code = asyncio.run(run_mesh(settings, console))
    raise typer.Exit(code)


@app.command(name="demo")
def demo_command(
    model: ModelOption = "",
    model_name: NameOption = "",
    state_dir: Annotated[
        Path | None, typer.Option(help=f"State directory of the demo's own mesh; {DEFAULT_STATE}, and demo in it")
    ] = None,
    threads: ThreadsOption = 0,
    two_tenants: Annotated[
        bool, typer.Option("--two-tenants", help="Train two tenants that share passes instead; nothing is sampled")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Directory for the loss curve and the report; unused with --two-tenants")
    ] = Path("out"),
) -> None:
    """Fine-tune a small real model through the SDK on a mesh of its own, and sample before and after."""
    with explained():
        script = demo.script("two_tenants.py" if two_tenants else "train.py")
        settings = make_settings(
            model=model, model_name=model_name, state_dir=state_dir or default_state_dir() / "demo", threads=threads,
            slots=4, max_rank=16, max_context=512, port=0, redis_port=0, scheduler_port=0, trainer_port=0,
            sampler_port=0, sampler=not two_tenants,
        )  # fmt: skip
        code = asyncio.run(
            run_mesh(settings, console, lambda mesh: demo.run_script(mesh, script, ["--out", str(out.resolve())]))
        )
    raise typer.Exit(code)


def main() -> None:
    app()
