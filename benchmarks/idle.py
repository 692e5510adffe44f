"""CPU of gateway, scheduler and Valkey when nobody asks for anything, and when sessions only beat."""

from __future__ import annotations

import time

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import DOUBLE, doubled
from benchmarks.processes import cpu_share

SESSIONS = 64
BEAT_SECONDS = 10.0  # what the SDK does
QUIET_SECONDS = 5.0  # start-up work ends


def run(quick: bool) -> list[Figure]:
    repetitions, seconds = (1, 5.0) if quick else (3, 20.0)
    with doubled(slots=SESSIONS) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        time.sleep(QUIET_SECONDS)
        alone = [cpu_share(mesh.pids(), seconds) for _ in range(repetitions)]
        client.do("open", **DOUBLE, models=SESSIONS, tokens=16)
        client.do("start_heartbeats", period=BEAT_SECONDS)
        time.sleep(QUIET_SECONDS)
        beating = [cpu_share(mesh.pids(), seconds) for _ in range(repetitions)]
        client.do("stop_heartbeats")
    return [
        *_figures("idle", alone, "<= 2", ""),
        *_figures("beating", beating, "", f"{SESSIONS} sessions with a model"),
    ]


def _figures(state: str, shares: list[dict[str, float]], target: str, note: str) -> list[Figure]:
    whole = Figure(f"{state}: whole control plane", [sum(share.values()) for share in shares], "% core", target, note)
    parts = [Figure(f"{state}: {name}", [share[name] for share in shares], "% core") for name in shares[0]]
    return [whole, *parts]
