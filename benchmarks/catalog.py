"""Lists, looks and sweeps with 100,000 checkpoints in 10,000 runs, against a tenant with 1,000 in 100.

Two tenants of one mesh, asked in turns through gateway, scheduler and Valkey. For the sweep the catalogs
move to a database of their own, where no scheduler competes for what is due.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from redis import Redis

from benchmarks.catalog_data import PER_RUN, Catalogs, run_id
from benchmarks.figure import Figure, quantile
from benchmarks.interleave import interleave, ratio
from benchmarks.mesh import RunningMesh, doubled
from services.local.state import keyring

SMALL, LARGE = 1_000, 100_000
DUE = 100
PAGE = 20
Times = dict[str, list[float]]


def run(quick: bool) -> list[Figure]:
    large, repetitions, calls = (SMALL * 5, 2, 5) if quick else (LARGE, 7, 30)
    sizes = {"small": SMALL, "large": large}
    with doubled(slots=2) as mesh:
        keys = dict(zip(sizes, mesh.keys(2), strict=True))
        ring = keyring(mesh.settings.key_file, mesh.settings.pepper_file)
        tenants = {name: ring.add(key) for name, key in keys.items()}
        filled = asyncio.run(_fill(mesh, sizes, tenants))
        asked = interleave({n: _asking(mesh, keys[n], sizes[n], calls) for n in sizes}, repetitions, warmup=1)
        memory = _move(mesh)
        swept = interleave({n: _sweeping(mesh, tenants[n]) for n in sizes}, repetitions)
    return [*_asked(asked, large), *_swept(swept), *_registered(filled, memory, large)]


async def _fill(mesh: RunningMesh, sizes: dict[str, int], tenants: dict[str, str]) -> float:
    """Answers how many checkpoints of the large one were registered per second."""
    mesh.fsync("no")
    catalogs = _catalogs(mesh, 0)
    rates = [await catalogs.fill(tenants[name], size) for name, size in sizes.items()]
    await catalogs.close()
    mesh.fsync("always")
    return rates[-1]


def _catalogs(mesh: RunningMesh, database: int) -> Catalogs:
    return Catalogs(f"{mesh.redis_url.rsplit('/', 1)[0]}/{database}", mesh.settings.state_dir / "swept")


def _asking(mesh: RunningMesh, key: str, checkpoints: int, calls: int) -> Callable[[], Times]:
    where = urlsplit(mesh.base_url)
    runs = checkpoints // PER_RUN
    questions = {
        "first page": f"checkpoints?limit={PAGE}",
        "middle page": f"checkpoints?limit={PAGE}&offset={checkpoints // 2}",
        "last page": f"checkpoints?limit={PAGE}&offset={checkpoints - PAGE}",
        "page of runs": f"training_runs?limit={PAGE}&offset={runs // 2}",
        "one run": f"training_runs/{run_id(runs // 2)}",
    }

    def measure() -> Times:
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        times = {name: [_answered(connection, key, path) for _ in range(calls)] for name, path in questions.items()}
        connection.close()
        return times

    return measure


def _answered(connection: http.client.HTTPConnection, key: str, path: str) -> float:
    """Milliseconds to the last byte."""
    started = time.perf_counter()
    connection.request("GET", f"/api/v1/{path}", headers={"x-api-key": key})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body[:300]
    return 1000 * (time.perf_counter() - started)


def _sweeping(mesh: RunningMesh, tenant: str) -> Callable[[], float]:
    async def sweep() -> float:
        catalogs = _catalogs(mesh, 1)
        try:
            return 1000 * await catalogs.sweep(tenant, DUE)
        finally:
            await catalogs.close()

    return lambda: asyncio.run(sweep())


def _move(mesh: RunningMesh) -> float:
    """The catalogs go where the mesh does not look; answers Valkey's memory, MiB."""
    with Redis.from_url(mesh.redis_url) as redis:
        used = float(redis.info("memory")["used_memory"]) / 2**20
        redis.swapdb(0, 1)
        return used


def _asked(results: dict[str, list[Times]], large: int) -> list[Figure]:
    figures = []
    for question in results["large"][0]:
        medians = {n: [quantile(times[question], 0.5) for times in results[n]] for n in results}
        figures.append(Figure(f"{question} of {large:,}, p50", medians["large"], "ms"))
        note = f"{large:,} checkpoints / {SMALL:,}"
        figures.append(Figure(f"{question}, large / small", ratio(medians, "large", "small"), "", "<= 1.5", note))
    return figures


def _swept(results: dict[str, list[float]]) -> list[Figure]:
    return [
        Figure(f"sweep of {DUE} expired", results["large"], "ms", note="unlisted, files deleted, forgotten"),
        Figure("sweep, large / small", ratio(results, "large", "small"), "", "<= 1.5"),
    ]


def _registered(rate: float, memory: float, large: int) -> list[Figure]:
    return [
        Figure("registered", [rate], "checkpoints/s", note="without fsync, to fill the catalog"),
        Figure(
            "Valkey's memory", [memory], "MiB", note=f"{large + SMALL:,} checkpoints in {(large + SMALL) // 10:,} runs"
        ),
    ]
