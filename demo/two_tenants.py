"""Two tenants train at once on one trainer; the mesh's own counters show that their datums shared passes.

`tinkermesh demo --two-tenants` starts the mesh and sets the variables; each tenant is an ordinary
Tinker SDK client with a key of its own.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import tinker
from rich.console import Console
from rich.table import Table
from tinker import types
from tinkermesh.v1 import admin_pb2, admin_pb2_grpc

sys.path.insert(0, str(Path(__file__).parent))

import gull_radio
from session import close

MODEL = os.environ.get("TINKERMESH_DEMO_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct")
TOKENIZER = os.environ.get("TINKERMESH_DEMO_TOKENIZER", MODEL)
console = Console()


class Tenant:
    """One API key, one model, its own share of the examples."""

    def __init__(self, name: str, key: str, datums: list[types.Datum], rank: int) -> None:
        self.name, self.datums, self.rank = name, datums, rank
        self.losses: list[float] = []
        self._service = tinker.ServiceClient(api_key=key)
        self._training = self._service.create_lora_training_client(base_model=MODEL, rank=rank, seed=rank).result()

    def submit(self, batch: list[types.Datum]) -> tuple[Any, Any]:
        """Both requests are on their way when this returns; nothing is awaited."""
        backward = self._training.forward_backward(batch, "cross_entropy")
        return backward, self._training.optim_step(types.AdamParams(learning_rate=2e-3))

    def finish(self) -> None:
        close(self._service)


def add_key(state_dir: str) -> str:
    """A second tenant, admitted as an operator would; no command line ever holds the key."""
    key = f"tml-{secrets.token_urlsafe(24)}"
    command = [str(Path(sys.executable).parent / "tinkermesh"), "keys", "add", "--label", "second tenant"]
    options = ["--key", "-", "--state-dir", state_dir]
    subprocess.run([*command, *options], input=key, text=True, check=True, stdout=subprocess.DEVNULL)
    return key


def counters(address: str) -> admin_pb2.AdminPool:
    with grpc.insecure_channel(address) as channel:
        pools = admin_pb2_grpc.AdminStub(channel).ListPools(admin_pb2.AdminListPoolsRequest(), timeout=10).pools
    return next(pool for pool in pools if pool.facts.base_model == MODEL)


def train(tenants: list[Tenant], steps: int, batch: int) -> None:
    """One step ahead of the results, so that work of both tenants is waiting whenever the trainer is free."""
    plans = [gull_radio.batches(t.datums, batch, steps) for t in tenants]
    waiting: list[tuple[Any, ...]] = []
    for step in zip(*plans, strict=True):
        waiting.append((step, [tenant.submit(datums) for tenant, datums in zip(tenants, step, strict=True)]))
        if len(waiting) > 1:
            collect(tenants, *waiting.pop(0))
    for left in waiting:
        collect(tenants, *left)


def collect(tenants: list[Tenant], step: tuple[list[types.Datum], ...], sent: list[tuple[Any, Any]]) -> None:
    for tenant, datums, (backward, optim) in zip(tenants, step, sent, strict=True):
        tenant.losses.append(float(backward.result().metrics["loss:sum"]) / gull_radio.weight(datums))
        optim.result()
    losses = "   ".join(f"{tenant.name} {tenant.losses[-1]:.2f}" for tenant in tenants)
    console.print(f"step {len(tenants[0].losses):2d}   {losses}", highlight=False)


def show(tenants: list[Tenant], before: admin_pb2.AdminPool, after: admin_pb2.AdminPool) -> int:
    table = Table("tenant", "rank", "first loss", "last loss")
    for tenant in tenants:
        table.add_row(tenant.name, str(tenant.rank), f"{tenant.losses[0]:.2f}", f"{tenant.losses[-1]:.2f}")
    console.print(table)
    units = after.units_total - before.units_total
    shared = after.shared_units_total - before.shared_units_total
    datums = after.datums_total - before.datums_total
    console.print(f"{units} units ran {datums} datums; {shared} passes held datums of both tenants", highlight=False)
    fell = all(tenant.losses[-1] < tenant.losses[0] for tenant in tenants)
    if not shared or not fell:
        console.print("[bold red]no pass was shared, or a loss did not fall")
        return 1
    return 0


def main() -> int:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--out", type=Path, help="not used: this demo makes no picture")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    datums = [gull_radio.datum(tokenizer, example) for example in gull_radio.load()[0]]
    address = os.environ["TINKERMESH_DEMO_ADMIN"]
    keys = {"first": os.environ["TINKER_API_KEY"], "second": add_key(os.environ["TINKERMESH_DEMO_STATE"])}
    tenants = [Tenant(name, key, datums[n::2], 8 * (n + 1)) for n, (name, key) in enumerate(keys.items())]
    before = counters(address)
    train(tenants, arguments.steps, arguments.batch)
    after = counters(address)
    for tenant in tenants:
        tenant.finish()
    return show(tenants, before, after)


if __name__ == "__main__":
    sys.exit(main())
