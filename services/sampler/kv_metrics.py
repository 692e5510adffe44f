"""What is counted of the tier that prefill and decode samplers share blocks through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

from services.sampler.metrics import SAMPLER as SAMPLER

SaveOutcome = Literal["saved", "known", "failed"]
Wait = Literal["save", "transfer"]

_saves = SAMPLER.counter(
    "kv_blocks_saved_total",
    "Blocks of prefill legs for the tier: saved, known there already, or failed.",
    ["outcome"],
)
_save_seconds = SAMPLER.histogram("kv_save_seconds", "Time to write one batch of blocks and to catalog it.")
_loads = SAMPLER.counter(
    "kv_blocks_loaded_total",
    "Blocks of decode legs: fetched before the engine took the request, or read again after a preemption.",
    ["when"],
)
_misses = SAMPLER.counter("kv_blocks_missed_total", "Blocks of decode legs that were not in the tier in time.")
_refusals = SAMPLER.counter(
    "kv_blocks_refused_total", "Blocks that are in the tier and were not served, by the check they failed.", ["cause"]
)
_catalog_seconds = SAMPLER.histogram("kv_catalog_seconds", "Time of one call to the catalog that was answered.")
_catalog_failures = SAMPLER.counter("kv_catalog_failures_total", "Calls to the catalog that were not answered.")
_republished = SAMPLER.counter("kv_republished_total", "Times the catalog was written anew from the directory.")
_collected = SAMPLER.counter("kv_blocks_collected_total", "Blocks dropped from the tier: too old, or no room.", ["why"])
_waits = SAMPLER.histogram(
    "kv_wait_seconds", "Time a leg waited for its blocks: to be saved, or to be fetched.", ["stage"]
)
_wait_failures = SAMPLER.counter("kv_wait_failures_total", "Legs whose blocks were not there in time.", ["stage"])
_recomputed = SAMPLER.counter(
    "kv_recomputed_tokens_total",
    "Prompt tokens of decode legs that the engine computed itself.",
)
_entries = SAMPLER.gauge("kv_tier_blocks", "Blocks in the tier, as its directory was last read.")
_bytes = SAMPLER.gauge("kv_tier_bytes", "Bytes of them.")
_limit = SAMPLER.gauge("kv_tier_limit_bytes", "Bytes the tier may hold; 0 = this sampler has no tier.")
_pending = SAMPLER.gauge("kv_pending_bytes", "Bytes of blocks that wait to be written.")

CAUSES = ("unreadable", "format", "checksum", "key", "geometry")
for _outcome in ("saved", "known", "failed"):
    _saves.labels(_outcome)
for _when in ("first", "again"):
    _loads.labels(_when)
for _cause in CAUSES:
    _refusals.labels(_cause)
for _why in ("age", "size", "asked"):
    _collected.labels(_why)
for _stage in ("save", "transfer"):
    _waits.labels(_stage)
    _wait_failures.labels(_stage)


def saved(outcome: SaveOutcome) -> None:
    _saves.labels(outcome).inc()


@contextmanager
def save_batch() -> Iterator[None]:
    started = perf_counter()
    yield
    _save_seconds.observe(perf_counter() - started)


def loaded(*, again: bool) -> None:
    _loads.labels("again" if again else "first").inc()


def missed() -> None:
    _misses.inc()


def refused(cause: str) -> None:
    """`cause` of a BadBlock; one that is only missing is not refused."""
    if cause in CAUSES:
        _refusals.labels(cause).inc()


@contextmanager
def catalog_call() -> Iterator[None]:
    """Around one call; what it raises is an outage."""
    started = perf_counter()
    try:
        yield
    except BaseException:
        _catalog_failures.inc()
        raise
    _catalog_seconds.observe(perf_counter() - started)


def republished() -> None:
    _republished.inc()


def collected(why: Literal["age", "size", "asked"], blocks: int) -> None:
    _collected.labels(why).inc(blocks)


@contextmanager
def waiting(stage: Wait) -> Iterator[None]:
    """Around the wait of one leg."""
    started = perf_counter()
    try:
        yield
    except Exception:
        _wait_failures.labels(stage).inc()
        raise
    _waits.labels(stage).observe(perf_counter() - started)


def recomputed(tokens: int) -> None:
    _recomputed.inc(tokens)


def usage(blocks: int, size: int) -> None:
    _entries.set(blocks)
    _bytes.set(size)


def watching(limit: int, pending: Callable[[], int]) -> None:
    """`pending` is read at each scrape."""
    _limit.set(limit)
    _pending.set_function(lambda: float(pending()))
