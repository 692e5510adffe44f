"""What durability costs: strict (a sync before every answer), everysec and off, one mesh in turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure, quantile
from benchmarks.interleave import interleave, ratio
from benchmarks.mesh import DOUBLE, RunningMesh, doubled

CLIENTS = 32
MODES = ("strict", "everysec", "off")
SYNCS = 100
Taken = dict[str, list[float]]


def run(quick: bool) -> list[Figure]:
    repetitions, seconds, operations = (2, 1.5, 30) if quick else (5, 3.0, 60)
    with doubled(slots=CLIENTS) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **DOUBLE, models=CLIENTS, tokens=128)
        variants = {mode: _variant(mesh, client, mode, seconds, operations) for mode in MODES}
        results = interleave(variants, repetitions, warmup=1)
        syncs = [_sync_ms(mesh) for _ in range(repetitions)]
    return [*_figures(results), Figure("one sync of this disk, p50", syncs, "ms", note="4 KiB appended, fdatasync")]


def _variant(
    mesh: RunningMesh, client: ClientProcess, mode: str, seconds: float, operations: int
) -> Callable[[], Taken]:
    def measure() -> Taken:
        mesh.durability(mode)
        alone: Taken = client.do("latency", operations=operations)
        taken: Taken = client.do("throughput", seconds=seconds)
        return taken | {"accepted": alone["optim_step posted"], "delivered": alone["optim_step"]}

    return measure


def _figures(results: dict[str, list[Taken]]) -> list[Figure]:
    rates = {mode: [taken["rate"][0] for taken in results[mode]] for mode in MODES}
    figures = [Figure(f"completed at {CLIENTS} clients, {mode}", rates[mode], "ops/s") for mode in MODES]
    for name, key in (
        (f"delivered at {CLIENTS} clients", "latencies"),
        ("optim_step accepted, one client", "accepted"),
        ("optim_step delivered, one client", "delivered"),
    ):
        for share in (0.5, 0.99):
            for mode in MODES:
                samples = [quantile(taken[key], share) for taken in results[mode]]
                figures.append(Figure(f"{name}, p{share * 100:.0f}, {mode}", samples, "ms"))
    return [
        *figures,
        Figure("ops/s strict / off", ratio(rates, "strict", "off"), "", note="off: no file at all"),
        Figure("ops/s everysec / off", ratio(rates, "everysec", "off"), ""),
    ]


def _sync_ms(mesh: RunningMesh) -> float:
    """Milliseconds of one small append and its sync, beside Redis' own file."""
    path, times = mesh.settings.state_dir / "redis" / "sync-probe", []
    with path.open("wb") as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    path.unlink()
    return quantile(times, 0.5)
