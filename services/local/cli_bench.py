"""`tinkermesh bench`: how fast the running mesh is now, seen by a few clients of this command's own."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from services.common.errors import InvalidInput
from services.local.bench.client import Load
from services.local.bench.figures import Figure
from services.local.bench.run import Measured, choose_model, measure
from services.local.console import StateOption, explained
from services.local.gateway_client import GatewayClient
from services.local.places import JsonOption, UrlOption, api_key, gateway_url
from services.local.tables import rows, say, show, show_json


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Of each phase: training, then sampling")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, max=64, help="Clients at once, each with a model of its own")] = 4,
    datums: Annotated[int, typer.Option(min=1, max=256, help="Datums of one forward_backward")] = 4,
    tokens: Annotated[
        int, typer.Option(min=2, max=32_768, help="Tokens of a datum, and of a prompt with output")
    ] = 128,
    max_tokens: Annotated[int, typer.Option(min=1, max=8192, help="Tokens of one sample's output")] = 16,
    rank: Annotated[int, typer.Option(min=1, max=512, help="LoRA rank")] = 8,
    model: Annotated[str, typer.Option(help="Name of the base model; default: the first that can be trained")] = "",
    samples: Annotated[bool, typer.Option(help="Sample, too; --no-samples trains only")] = True,
    as_json: JsonOption = False,
    state_dir: StateOption = None,
    url: UrlOption = "",
) -> None:
    """A small load on a running mesh: operations and tokens per second, latencies. It takes time from others."""
    with explained():
        if max_tokens >= tokens:
            raise InvalidInput(f"--max-tokens: {max_tokens} leave no room for a prompt in --tokens {tokens}")
        chosen = gateway_url(state_dir, url)
        key = api_key(chosen, state_dir)
        asking = GatewayClient(chosen, key)
        name, sampleable = choose_model(asking, model, tokens)
        asking.close()
        load = Load(
            model=name, samples=samples and sampleable, seconds=seconds, clients=clients, datums=datums, tokens=tokens,
            rank=rank, sampled=max_tokens,
        )  # fmt: skip
        found = measure(lambda: GatewayClient(chosen, key), load)
        if as_json:
            show_json(msgspec.to_builtins(found))
        else:
            _show(found, left_out=samples and not sampleable)
        raise typer.Exit(1 if any(one.failed or not one.succeeded for one in found.figures) else 0)


def _show(found: Measured, *, left_out: bool) -> None:
    load = found.load
    shape = f"{load.clients} clients, {load.datums} datums of {load.tokens} tokens, rank {load.rank}"
    say(f"{load.model} at {found.url}: {shape}, {load.seconds:g} s a phase")
    columns = ("operation", ">done", ">failed", ">per second", ">tokens per second", ">p50 ms", ">p99 ms")
    show(rows("", columns, [_row(one) for one in found.figures]))
    if left_out:
        say("no live sampler: nothing was sampled", "yellow")
    if found.refused:
        say(f"{found.refused} times the mesh was busy, and a client waited for a second", "yellow")
    for one in found.figures:
        if one.first_failure:
            say(f"{one.op}: {one.first_failure}", "red")


def _row(one: Figure) -> list[object]:
    tokens = f"{one.tokens_per_second:,.0f}" if one.op != "optim_step" else ""
    rates = (f"{one.ops_per_second:,.1f}", tokens, f"{one.p50_ms:,.1f}", f"{one.p99_ms:,.1f}")
    return [one.op, one.succeeded, one.failed, *rates]
