"""Eight tenants with one 16-token datum each through the whole mesh: all at once against one after the other."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.interleave import interleave, ratio
from benchmarks.mesh import real
from services.local.default_model import NAME, ensure

TENANTS, TOKENS, VOCABULARY = 8, 16, 49_152


def run(quick: bool) -> list[Figure]:
    repetitions, steps = (2, 1) if quick else (7, 4)
    with real(ensure(), NAME, sampler=False) as mesh, ClientProcess(mesh.base_url, mesh.keys(TENANTS)) as client:
        client.do("open", base_model=NAME, vocabulary=VOCABULARY, models=TENANTS, tokens=TOKENS)
        client.do("start_heartbeats", period=10.0)
        variants = {"together": _variant(client, steps, True), "alone": _variant(client, steps, False)}
        seconds = interleave(variants, repetitions, warmup=1)
    done = TENANTS * steps
    return [
        Figure("whole mesh: packed / one by one", ratio(seconds, "alone", "together"), "", ">= 3", _NOTE),
        Figure("whole mesh, packed", [done / s for s in seconds["together"]], "steps/s"),
        Figure("whole mesh, one by one", [done / s for s in seconds["alone"]], "steps/s"),
    ]


_NOTE = f"{TENANTS} tenants, each forward_backward of {TOKENS} tokens + optim_step"


def _variant(client: ClientProcess, steps: int, together: bool) -> Callable[[], float]:
    def measure() -> float:
        seconds: float = client.do("steps", count=steps, together=together)
        return seconds

    return measure
