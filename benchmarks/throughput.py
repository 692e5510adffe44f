"""Control path, 64 clients, each with its own session and model and awaiting its own operations."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure, quantile
from benchmarks.interleave import interleave, ratio
from benchmarks.mesh import DOUBLE, PROCESSES, RunningMesh, doubled
from benchmarks.processes import cpu_seconds

CLIENTS = 64
MEASURED = (*PROCESSES, "trainer")
Taken = dict[str, list[float]]


def run(quick: bool) -> list[Figure]:
    repetitions, seconds = (2, 2.0) if quick else (7, 6.0)
    with doubled(slots=CLIENTS) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **DOUBLE, models=CLIENTS, tokens=128)
        variants = {policy: _variant(mesh, client, policy, seconds) for policy in ("always", "everysec")}
        results = interleave(variants, repetitions, warmup=1)
    return _figures(results)


def _variant(mesh: RunningMesh, client: ClientProcess, policy: str, seconds: float) -> Callable[[], Taken]:
    def measure() -> Taken:
        mesh.fsync(policy)
        pids = mesh.pids(MEASURED)
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        taken: Taken = client.do("throughput", seconds=seconds)
        done = len(taken["latencies"])
        return taken | {name: [1000 * (cpu_seconds(pid) - before[name]) / done] for name, pid in pids.items()}

    return measure


def _figures(results: dict[str, list[Taken]]) -> list[Figure]:
    strict = results["always"]
    rates = {policy: [taken["rate"][0] for taken in results[policy]] for policy in results}
    mixed = "forward_backward (1 datum of 128 tokens) and optim_step in turns"
    return [
        Figure(f"completed at {CLIENTS} clients", rates["always"], "ops/s", ">= 300", mixed),
        Figure("delivered, p50", [quantile(taken["latencies"], 0.5) for taken in strict], "ms"),
        Figure("delivered, p99", [quantile(taken["latencies"], 0.99) for taken in strict], "ms"),
        Figure("ops/s strict / everysec", ratio(rates, "always", "everysec"), ""),
        *(Figure(f"CPU per operation, {name}", [taken[name][0] for taken in strict], "ms") for name in MEASURED),
    ]
