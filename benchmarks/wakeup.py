"""How soon one settlement reaches its open poll while 1,000, and 5,000, others wait; what so many polls take."""

from __future__ import annotations

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure, quantile
from benchmarks.mesh import DOUBLE, PROCESSES, doubled
from benchmarks.processes import cpu_share, rss_mib

# Open polls -> the most milliseconds 99 of 100 settlements may take.
SIZES = {1000: 20, 5000: 300}
GATEWAY = "gateway-0"
GATEWAY_MIB = 500
HELD_SECONDS = 0.03  # the unit takes this long, so that its poll is open when it settles


def run(quick: bool) -> list[Figure]:
    return [figure for polls, target in SIZES.items() for figure in _with_polls(polls, target, quick)]


def _with_polls(polls: int, target: int, quick: bool) -> list[Figure]:
    repetitions, times, ramp, watch = (2, 30, 3.0, 2.0) if quick else (5, 200, 28.0, 15.0)
    with doubled(slots=8) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **DOUBLE, models=2, tokens=16)
        client.do("open_polls", count=polls, ramp=ramp, redis_url=mesh.redis_url)
        mesh.delay_trainer(HELD_SECONDS)
        client.do("wakeups", times=10)
        taken = [client.do("wakeups", times=times) for _ in range(repetitions)]
        idle = cpu_share(mesh.pids(), watch)
        resident = rss_mib(mesh.pids()[GATEWAY])
    note = f"{polls} open polls"
    return [
        Figure(f"settlement to answer, p50, {polls} polls", [quantile(t, 0.5) for t in taken], "ms", note=note),
        Figure(
            f"settlement to answer, p99, {polls} polls", [quantile(t, 0.99) for t in taken], "ms", f"<= {target}", note
        ),
        Figure(f"CPU while only waiting, {polls} polls", [sum(idle.values())], "% core", note=" + ".join(PROCESSES)),
        Figure(f"memory of the gateway, {polls} polls", [resident], "MiB", f"<= {GATEWAY_MIB}"),
    ]
