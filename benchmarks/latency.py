"""Control path, one client: from the POST to the delivered result, with a trainer that computes nothing."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure, quantile
from benchmarks.interleave import interleave
from benchmarks.mesh import DOUBLE, RunningMesh, doubled

Times = dict[str, list[float]]
OPERATIONS = ("forward_backward", "optim_step")
DATUM = "1 datum of 128 tokens"


def run(quick: bool) -> list[Figure]:
    repetitions, operations = (2, 40) if quick else (7, 150)
    with doubled(slots=8) as mesh, ClientProcess(mesh.base_url, mesh.keys(1)) as client:
        client.do("open", **DOUBLE, models=1, tokens=128)
        variants = {policy: _variant(mesh, client, policy, operations) for policy in ("always", "everysec")}
        results = interleave(variants, repetitions, warmup=1)
    return [*_strict(results["always"]), *_durability(results)]


def _variant(mesh: RunningMesh, client: ClientProcess, policy: str, operations: int) -> Callable[[], Times]:
    def measure() -> Times:
        mesh.fsync(policy)
        times: Times = client.do("latency", operations=operations)
        return times

    return measure


def _strict(results: list[Times]) -> list[Figure]:
    figures = []
    for name in OPERATIONS:
        note = DATUM if name == "forward_backward" else "no tensors"
        for share, target in ((0.5, "<= 8"), (0.99, "<= 40")):
            samples = [quantile(times[name], share) for times in results]
            figures.append(Figure(f"{name} delivered, p{share * 100:.0f}", samples, "ms", target, note))
    posted = [quantile(times["optim_step posted"], 0.5) for times in results]
    return [*figures, Figure("optim_step accepted, p50", posted, "ms", note="the POST alone: durable and answered")]


def _durability(results: dict[str, list[Times]]) -> list[Figure]:
    medians = {p: [quantile(times["optim_step"], 0.5) for times in results[p]] for p in results}
    ratios = [strict / relaxed for strict, relaxed in zip(medians["always"], medians["everysec"], strict=True)]
    return [Figure("p50 strict / everysec", ratios, "", note="optim_step; price of an fsync before every answer")]
