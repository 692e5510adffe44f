"""What a scheduler replica counts itself. What Redis knows of a pool is told by its leader alone: pool_metrics.py.

A unit or a request is counted by the replica that settles it, so sums over replicas are right; `pool` is a name the
operator gave.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tinkermesh.v1 import types_pb2 as types

from services.common.errors import BY_CODE, TinkermeshError
from services.common.metrics import MetricSet, known
from services.scheduler.core.view import Op
from services.scheduler.dispatch.client import Outcome
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.training import Settlement
from services.scheduler.tenancy.records import TENANT_CLASSES

SCHEDULER = MetricSet("tinkermesh_scheduler")

TRAIN, SAMPLE = "train", "sample"
CAUSES = ("released", "superseded", "lost", "error")
"""Why a term of leadership ended."""
OPS = frozenset(op.value for op in Op)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
_TOKENS = (64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0)
_SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 2.0)
_WAKE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

units = SCHEDULER.counter(
    "units_total",
    "Units settled, by what they do, whether for a request (live) or for recovery, and how they ended.",
    ["pool", "kind", "purpose", "outcome"],
)
unit_seconds = SCHEDULER.histogram(
    "unit_seconds", "Time a trainer computed on a unit, as it says.", ["pool", "kind", "purpose"]
)
unit_tokens = SCHEDULER.histogram("unit_tokens", "Tokens of a live pass.", ["pool"], _TOKENS)
unit_datums = SCHEDULER.histogram("unit_datums", "Datums of a live pass.", ["pool"], _SIZES)
unit_tenants = SCHEDULER.histogram("unit_tenants", "Tenants that share a live pass.", ["pool"], _SIZES[:7])
unit_fill = SCHEDULER.histogram(
    "unit_fill_ratio", "Tokens of a live pass as a share of the pool's unit token budget.", ["pool"], _SHARES
)
settled = SCHEDULER.counter(
    "requests_settled_total",
    "Requests settled, by operation; failed_user is the client's fault, failed_server the mesh's. "
    "`parts` of a batch count each unit that had some of it.",
    ["pool", "op", "outcome"],
)
queue_wait = SCHEDULER.histogram(
    "queue_wait_seconds",
    "From a request's admission to the unit or sampler it goes to.",
    ["pool", "path", "tenant_class"],
)
wakeup = SCHEDULER.histogram(
    "wakeup_seconds",
    "From the admission of a request that wakes an idle pool to its unit: what polling would cost.",
    ["pool"],
    _WAKE,
)
sample_seconds = SCHEDULER.histogram("sample_seconds", "From a sample's admission to its settlement.", ["pool"])
sample_retries = SCHEDULER.counter(
    "sample_retries_total", "Attempts to sample that had no outcome and were repeated, by where.", ["pool", "where"]
)
leg_first_token = SCHEDULER.histogram(
    "leg_first_token_seconds",
    "From a stream's start at a sampler to its first chunk, by leg: whole, prefill (queue, prompt, blocks saved) or "
    "decode (queue, blocks loaded, one step).",
    ["leg"],
)
flow_retries = SCHEDULER.counter(
    "flow_retries_total",
    "Streams that broke before their caller had anything of them, and began anew on samplers chosen again.",
    ["pool"],
)
placements = SCHEDULER.counter(
    "placements_total",
    "Samples given to a sampler, by why it was that one: resident (it has the adapter, others have not), prefix (its "
    "cache has the prompt's start), sticky (the conversation's), load (the least busy).",
    ["pool", "reason"],
)
_generations = SCHEDULER.counter(
    "generations_total",
    "Requests of the OpenAI routes whose model was found, by how they ended: ok, cancelled, or the class of the error.",
    ["pool", "outcome"],
)
_generations_open = SCHEDULER.gauge("generations_open", "Those under way.", ["pool"])
_first_chunk = SCHEDULER.histogram(
    "generation_first_chunk_seconds", "From such a request's arrival to the first of what it generated.", ["pool"]
)
leading = SCHEDULER.gauge("leading", "1 while this replica holds the pool's lease, else 0.", ["pool"])
terms_ended = SCHEDULER.counter(
    "terms_ended_total",
    "Terms of leadership that ended, by cause: lost and superseded are not orderly, released is.",
    ["pool", "cause"],
)
job_tasks = SCHEDULER.counter(
    "job_tasks_settled_total",
    "Tasks of jobs settled; failed_user is the client's fault, failed_server the mesh's.",
    ["pool", "outcome"],
)
job_tokens = SCHEDULER.counter("job_tokens_total", "Tokens generated for settled tasks of jobs.", ["pool"])
job_retries = SCHEDULER.counter(
    "job_retries_total",
    "Attempts at a task of a job that ended early and were gone on with: lost on a sampler, or waited for one in vain.",
    ["pool", "where"],
)
job_tasks_running = SCHEDULER.gauge("job_tasks_running", "Tasks of jobs that run; told by the pool's leader.", ["pool"])
jobs_torn = SCHEDULER.counter(
    "jobs_torn_total", "Files of jobs that could not be read when jobs were restored from the store.", ["pool"]
)
redis_up = SCHEDULER.gauge("redis_up", "1 while this replica's last look at Redis was answered.")
redis_fill = SCHEDULER.gauge(
    "redis_memory_fill_ratio",
    "Memory of the fullest Redis node as a share of its maxmemory; 0 without one. Same at all replicas.",
)
redis_high_water = SCHEDULER.gauge("redis_memory_high_water_ratio", "The share above which new payloads are refused.")
store_free = SCHEDULER.gauge("store_free_bytes", "Room in the shared store. Same at all replicas.")
store_size = SCHEDULER.gauge("store_size_bytes", "Size of the shared store's file system. Same at all replicas.")
_streams = SCHEDULER.gauge("watch_streams", "Gateways whose stream of settlements is open here.")
_waits = SCHEDULER.gauge("open_waits", "Requests that gateways wait for here.")

ClassOf = Callable[[str], str]
"""From a tenant to its class."""


def watching(streams: Callable[[], int], open_waits: Callable[[], int]) -> None:
    """Read at each scrape."""
    _streams.set_function(streams)
    _waits.set_function(open_waits)


def waited(pool: str, path: str, tenant_class: str, seconds: float) -> None:
    """Clocks of two machines may differ: a wait is never below 0."""
    queue_wait.labels(pool, path, known(tenant_class, TENANT_CLASSES)).observe(max(0.0, seconds))


def woken(pool: str, seconds: float) -> None:
    wakeup.labels(pool).observe(max(0.0, seconds))


def unit_settled(
    pool: str, prepared: Prepared, outcome: Outcome, entries: Sequence[Settlement], tenants: int, budget: int
) -> None:
    """One unit and each of its requests."""
    kind = str(prepared.unit.WhichOneof("work"))
    purpose = "recovery" if prepared.items[0].x else "live"
    failed = bool(outcome.problem) or outcome.header.HasField("failure")
    units.labels(pool, kind, purpose, "failed" if failed else "ok").inc()
    if not failed:
        unit_seconds.labels(pool, kind, purpose).observe(outcome.header.execute_seconds)
    if purpose == "live":
        if kind == "pass" and not failed:
            _pass(pool, prepared, tenants, budget)
        for item, entry in zip(prepared.items, entries, strict=True):
            if item.o:
                settled.labels(pool, known(item.o, OPS), _outcome(entry)).inc()


def _pass(pool: str, prepared: Prepared, tenants: int, budget: int) -> None:
    tokens = sum(item.t for item in prepared.items)
    unit_tokens.labels(pool).observe(tokens)
    unit_datums.labels(pool).observe(sum(item.n for item in prepared.items))
    unit_tenants.labels(pool).observe(tenants)
    if budget:
        unit_fill.labels(pool).observe(tokens / budget)


def _outcome(entry: Settlement) -> str:
    if entry.action == "fail":
        return "failed_user" if entry.a == str(types.FAILURE_CATEGORY_USER) else "failed_server"
    return {"again": "repeated", "part": "parts", "quarantine": "failed_server"}.get(entry.action, "done")


def sample_settled(pool: str, result: types.Result, seconds: float) -> None:
    outcome = "done"
    if result.HasField("failure"):
        user = result.failure.category == types.FAILURE_CATEGORY_USER
        outcome = "failed_user" if user else "failed_server"
    settled.labels(pool, Op.SAMPLE.value, outcome).inc()
    sample_seconds.labels(pool).observe(max(0.0, seconds))


class Generating:
    """One generation as it is counted."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._began = time.monotonic()
        self._told = False

    def chunk(self) -> None:
        if not self._told:
            self._told = True
            _first_chunk.labels(self._pool).observe(time.monotonic() - self._began)


@contextmanager
def generation(pool: str) -> Iterator[Generating]:
    """Around one request of the OpenAI routes."""
    outcome = "cancelled"
    _generations_open.labels(pool).inc()
    try:
        yield Generating(pool)
        outcome = "ok"
    except TinkermeshError as error:
        outcome = known(error.code, BY_CODE)
        raise
    except Exception:
        outcome = "internal"
        raise
    finally:
        _generations_open.labels(pool).dec()
        _generations.labels(pool, outcome).inc()


def job_task_settled(pool: str, state: str, category: str, tokens: int) -> None:
    """`state`: done, failed or cancelled; `category` of a failure: user or server."""
    job_tasks.labels(pool, f"failed_{category}" if state == "failed" else state).inc()
    job_tokens.labels(pool).inc(tokens)


def refused_in_turn(pool: str, op: str) -> None:
    """A command whose unit could not be built: its client's fault."""
    settled.labels(pool, known(op, OPS), "failed_user").inc()


def pools_known(pools: Iterable[str]) -> None:
    """So that a pool nobody leads is seen, and the first failure too: their series are there from the first look on.

    A counter that appears at 1 has not grown, for Prometheus.
    """
    for pool in pools:
        leading.labels(pool)
        for cause in CAUSES:
            terms_ended.labels(pool, cause)
        for outcome in ("done", "failed_user", "failed_server", "cancelled"):
            job_tasks.labels(pool, outcome)
        for where in ("lost", "waited"):
            job_retries.labels(pool, where)
        job_tokens.labels(pool)
        jobs_torn.labels(pool)
        for op in OPS:
            settled.labels(pool, op, "failed_server")
