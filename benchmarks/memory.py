"""Resident memory of each service: at rest after its start, and the most it took under load."""

from __future__ import annotations

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import DOUBLE, PROCESSES, doubled
from benchmarks.processes import peak_rss, rss_mib

CLIENTS = 32
LOAD = f"{CLIENTS} clients, 16 datums of 512 tokens each"


def run(quick: bool) -> list[Figure]:
    seconds = 3.0 if quick else 30.0
    with doubled(slots=CLIENTS) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        pids = mesh.pids()
        rest = {name: rss_mib(pid) for name, pid in pids.items()}
        client.do("open", **DOUBLE, models=CLIENTS, tokens=512, datums=16)
        with peak_rss(pids) as peaks:
            client.do("throughput", seconds=seconds)
    return [
        *(Figure(f"{name} at rest", [rest[name]], "MiB") for name in PROCESSES),
        *(Figure(f"{name} under load", [peaks[name]], "MiB", note=LOAD) for name in PROCESSES),
    ]
