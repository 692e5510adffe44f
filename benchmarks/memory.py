"""Resident memory of each service: at rest after its start, and the most it took under load."""

from __future__ import annotations

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import DOUBLE, PROCESSES, doubled, real
from benchmarks.processes import peak_rss, rss_mib
from services.local.default_model import NAME, ensure

CLIENTS = 32
CONTROL_LOAD = f"{CLIENTS} clients, 16 datums of 512 tokens each"
TENANTS, VOCABULARY = 8, 49_152
ENGINES = ("trainer", "sampler")
ENGINE_LOAD = f"SmolLM2-135M, {TENANTS} tenants: 2 datums of 256 tokens each, and a sample of 64 tokens each"


def run(quick: bool) -> list[Figure]:
    return [*_control_plane(3.0 if quick else 30.0), *_engines(1 if quick else 3)]


def _control_plane(seconds: float) -> list[Figure]:
    with doubled(slots=CLIENTS) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        pids = mesh.pids()
        rest = {name: rss_mib(pid) for name, pid in pids.items()}
        client.do("open", **DOUBLE, models=CLIENTS, tokens=512, datums=16)
        with peak_rss(pids) as peaks:
            client.do("throughput", seconds=seconds)
    return _figures(PROCESSES, rest, peaks, CONTROL_LOAD)


def _engines(steps: int) -> list[Figure]:
    with real(ensure(), NAME, sampler=True) as mesh, ClientProcess(mesh.base_url, mesh.keys(TENANTS)) as client:
        pids = mesh.pids(ENGINES)
        rest = {name: rss_mib(pid) for name, pid in pids.items()}
        client.do("open", base_model=NAME, vocabulary=VOCABULARY, models=TENANTS, tokens=256, datums=2)
        client.do("start_heartbeats", period=10.0)
        with peak_rss(pids) as peaks:
            client.do("steps", count=steps, together=True)
            client.do("samples", tokens=64)
    return _figures(ENGINES, rest, peaks, ENGINE_LOAD)


def _figures(names: tuple[str, ...], rest: dict[str, float], peaks: dict[str, float], load: str) -> list[Figure]:
    return [
        *(Figure(f"{name} at rest", [rest[name]], "MiB") for name in names),
        *(Figure(f"{name} under load", [peaks[name]], "MiB", note=load) for name in names),
    ]
