"""How soon one settlement reaches its open poll while 1,000 others wait."""

from __future__ import annotations

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure, quantile
from benchmarks.mesh import DOUBLE, PROCESSES, doubled
from benchmarks.processes import cpu_share

POLLS = 1000
HELD_SECONDS = 0.03  # the unit takes this long, so that its poll is open when it settles


def run(quick: bool) -> list[Figure]:
    repetitions, times, ramp, watch = (2, 30, 3.0, 2.0) if quick else (5, 200, 28.0, 15.0)
    with doubled(slots=8) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **DOUBLE, models=2, tokens=16)
        client.do("open_polls", count=POLLS, ramp=ramp, redis_url=mesh.redis_url)
        mesh.delay_trainer(HELD_SECONDS)
        client.do("wakeups", times=10)
        taken = [client.do("wakeups", times=times) for _ in range(repetitions)]
        idle = cpu_share(mesh.pids(), watch)
    return [
        Figure("settlement to answer, p50", [quantile(t, 0.5) for t in taken], "ms", note=f"{POLLS} open polls"),
        Figure("settlement to answer, p99", [quantile(t, 0.99) for t in taken], "ms", "<= 20", f"{POLLS} open polls"),
        Figure(
            "CPU while only waiting", [sum(idle.values())], "% core", note=f"{' + '.join(PROCESSES)}, {POLLS} polls"
        ),
    ]
