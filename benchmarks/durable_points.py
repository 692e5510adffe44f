"""What durable points cost a SmolLM2-135M job: a few steps with one point against as many without, in turns.

A block is shorter than the default interval, so that more of them fit between two moods of the machine;
the cost of its one point is then spread over the interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.interleave import interleave, ratio
from benchmarks.mesh import PROCESSES, RunningMesh, real
from benchmarks.processes import cpu_seconds
from services.local.default_model import NAME, ensure
from services.scheduler.settings import Settings

INTERVAL = Settings(store_root="", pepper_file="").durable_every_steps
NEVER = 1_000_000
BLOCK, REPETITIONS = 4, 5  # steps of a block
RANK, DATUMS, TOKENS, VOCABULARY = 32, 1, 256, 49_152
MEASURED = (*PROCESSES, "trainer")
MEBIBYTE = 1 << 20
WORK = f"blocks of {BLOCK} steps with one point or none; a step is {DATUMS} x {TOKENS} tokens, rank {RANK}"
Taken = dict[str, float]


def run(quick: bool) -> list[Figure]:
    repetitions = 1 if quick else REPETITIONS
    with real(ensure(), NAME, sampler=False) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", base_model=NAME, vocabulary=VOCABULARY, models=1, tokens=TOKENS, datums=DATUMS, rank=RANK)
        client.do("start_heartbeats", period=10.0)
        variants = {"with": _variant(mesh, client, BLOCK + 1), "without": _variant(mesh, client, NEVER)}
        results = interleave(variants, repetitions, warmup=1)
        lines = mesh.log_fields("trainer")
    return [*_shares(results), *_points(results, lines)]


def _variant(mesh: RunningMesh, client: ClientProcess, interval: int) -> Callable[[], Taken]:
    """A block leaves less than an interval of steps behind: one point falls due in the next one, if any may."""

    def measure() -> Taken:
        mesh.durable_every(interval)
        pids, points = mesh.pids(MEASURED), mesh.recovery().durables_total
        cpu, started = sum(map(cpu_seconds, pids.values())), time.perf_counter()
        client.do("steps", count=BLOCK, together=True)
        seconds = time.perf_counter() - started
        spent = sum(map(cpu_seconds, pids.values())) - cpu
        return {"wall": seconds, "CPU": spent, "points": float(mesh.recovery().durables_total - points)}

    return measure


def _shares(results: dict[str, list[Taken]]) -> list[Figure]:
    figures = []
    for clock in ("wall", "CPU"):
        taken = {name: [one[clock] for one in results[name]] for name in results}
        lost = [100 * (share - 1) * BLOCK / INTERVAL for share in ratio(taken, "with", "without")]
        target = "<= 3" if clock == "wall" else ""
        figures.append(Figure(f"a point every {INTERVAL} steps, more {clock} time", lost, "%", target, WORK))
    return [*figures, Figure("a step without", [one["wall"] / BLOCK for one in results["without"]], "s")]


def _points(results: dict[str, list[Taken]], lines: Sequence[dict[str, object]]) -> list[Figure]:
    """Of every point of the run, the warm-up's included."""
    published = [line for line in lines if str(line.get("published", "")).startswith("durable/")]
    captures = [str(line["message"]) for line in lines if str(line.get("message", "")).startswith("save: ")]
    return [
        Figure("points per variant with them", [one["points"] for one in results["with"]], "", ">= 1"),
        Figure("points per variant without", [one["points"] for one in results["without"]], "", "<= 0"),
        Figure("capture, the trainer stands still", [_seconds(text) * 1000 for text in captures], "ms"),
        Figure("written and published beside training", [_number(one, "seconds") for one in published], "s"),
        Figure("a point's files", [_number(one, "bytes") / MEBIBYTE for one in published], "MiB"),
    ]


def _seconds(message: str) -> float:
    """Out of the trainer's line of a unit, ``save: 0.012 s``."""
    return float(message.split()[1])


def _number(line: dict[str, object], name: str) -> float:
    return float(str(line[name]))
