"""One job of 10,000 tasks with a sampler that computes nothing: what a task costs the scheduler and Redis."""

from __future__ import annotations

import time
from typing import Any

import httpx
from redis import Redis

from benchmarks.figure import Figure
from benchmarks.mesh import RunningMesh, doubled
from benchmarks.processes import cpu_during, peak_rss, rss_mib
from services.common.ids import parse_job_id
from services.scheduler.store import keys

COUNT, QUICK_COUNT, MAX_TOKENS, PROMPT = 10_000, 500, 8, 64
KIBIBYTES = 1024.0
SECONDS = 3600.0
OPEN = ("queued", "running", "cancelling")


def run(quick: bool) -> list[Figure]:
    count = QUICK_COUNT if quick else COUNT
    with doubled(1) as mesh, httpx.Client(base_url=mesh.base_url, timeout=300.0, trust_env=False) as http:
        http.headers["x-api-key"] = mesh.mesh.api_key
        _finished(http, _made(http, 16))  # what a first job loads stays out of the figures
        return _measured(mesh, http, count)


def _measured(mesh: RunningMesh, http: httpx.Client, count: int) -> list[Figure]:
    pids = mesh.pids()
    rest = {name: rss_mib(pid) for name, pid in pids.items()}
    started, made = time.perf_counter(), list[str]()
    admission = cpu_during(pids, lambda: made.append(_made(http, count)))
    accepted = time.perf_counter() - started
    waiting = _redis_bytes(mesh, made[0])
    with peak_rss(pids) as peaks:
        spent = cpu_during(pids, lambda: _finished(http, made[0]))
    took = time.perf_counter() - started - accepted
    kept = _redis_bytes(mesh, made[0])
    note = f"{count:,} tasks of {PROMPT} + {MAX_TOKENS} tokens, 16 at a time, durability strict"
    grown = (peaks["scheduler-0"] - rest["scheduler-0"]) * KIBIBYTES / count
    return [
        Figure("accepted after", [accepted], "s", note=note),
        Figure("done after that", [took], "s", note=f"{count / took:.0f} tasks a second"),
        Figure("scheduler's CPU, accepting", [1000 * admission["scheduler-0"] / count], "ms/task", note=note),
        Figure("scheduler's CPU, running", [1000 * spent["scheduler-0"] / count], "ms/task", note=note),
        Figure("Redis' CPU, running", [1000 * spent["redis"] / count], "ms/task", note=note),
        Figure(
            "scheduler's memory, at most above rest", [grown], "KiB/task", note=f"{rest['scheduler-0']:.0f} MiB at rest"
        ),
        Figure("Redis' memory, waiting", [waiting], "B", note="of the whole job, however many tasks it has"),
        Figure("Redis' memory, settled", [kept / count], "B/task", note=note),
    ]


def _made(http: httpx.Client, count: int) -> str:
    tasks = [
        {"input": [(7 * n + k) % 500 + 1 for k in range(PROMPT)], "max_tokens": MAX_TOKENS, "stop": []}
        for n in range(count)
    ]
    answer = http.post("/v1/control/jobs", json={"tasks": tasks}, headers={"x-idempotency-key": f"bench-{count}"})
    answer.raise_for_status()
    return str(answer.json()["job_id"])


def _finished(http: httpx.Client, job_id: str) -> None:
    """Raises RuntimeError when not all of its tasks are done."""
    deadline = time.monotonic() + SECONDS
    while True:
        job: dict[str, Any] = http.get(f"/v1/control/jobs/{job_id}").json()
        if job["state"] == "done":
            return
        if job["state"] not in OPEN or time.monotonic() > deadline:
            raise RuntimeError(f"the job is {job['state']}: {job['tasks']}")
        time.sleep(0.5)


def _redis_bytes(mesh: RunningMesh, job_id: str) -> int:
    """Of the job's two hashes."""
    pool = parse_job_id(job_id).pool
    with Redis.from_url(mesh.redis_url) as redis:
        found = [redis.memory_usage(name, samples=0) for name in (keys.job(pool, job_id), keys.job_tasks(pool, job_id))]
    return sum(int(size or 0) for size in found)
