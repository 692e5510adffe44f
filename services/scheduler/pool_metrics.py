"""The state of a pool that lies in Redis, as metrics: told by the holder of the pool's lease alone.

Every replica could read it, and each would tell the same: sums over replicas would count it many times. Now one
replica tells, and after a change of leaders another one does; `max by (pool)` is right before, between and after.
A scrape reads the last look, never Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.common.errors import Unavailable
from services.common.metrics import MetricSet
from services.scheduler.metrics import SCHEDULER
from services.scheduler.store.pool_state import PoolState, PoolStateReader
from services.scheduler.store.registry import Kind, RegistryStore
from services.scheduler.tenancy.records import TENANT_CLASSES

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
FORGET_LOOKS = 6  # in a row that Redis did not answer

POOL = MetricSet("tinkermesh_pool")

# Counter of Redis (keys.counters) -> (metric, meaning).
TOTALS = {
    "units_total": ("units_total", "Units sent to the trainer."),
    "passes_total": ("passes_total", "Live passes."),
    "datums_total": ("datums_total", "Datums of live passes."),
    "tokens_total": ("tokens_total", "Tokens of live passes."),
    "tenants_total": ("pass_tenants_total", "Tenants of live passes: divided by passes_total, tenants per pass."),
    "shared_units_total": ("shared_passes_total", "Live passes of more than one tenant."),
    "started_total": ("requests_started_total", "Requests that went to their first unit."),
    "queue_wait_ms_total": ("queue_wait_milliseconds_total", "What those waited for it, together."),
    "solo_retries_total": ("solo_retries_total", "Requests sent again in other company after a failed unit."),
    "trainers_lost_total": ("trainers_lost_total", "Trainer incarnations whose models had to be restored."),
    "seated_total": ("models_restored_total", "Models that were put back into a slot."),
    "replay_units_total": ("replay_units_total", "Units of replay."),
    "replay_faults_total": ("replay_faults_total", "Restorations that failed and were begun anew."),
    "replay_mismatches_total": ("replay_mismatches_total", "Replays whose numbers were not the recorded ones."),
    "poisoned_total": ("poisoned_total", "Requests given up because the trainer died under them."),
    "durables_total": ("durable_points_total", "Durable points published."),
    "durable_failures_total": ("durable_failures_total", "Durable points that could not be written."),
    "pages_total": ("pages_total", "Models that gave up their slot to another."),
    "moved_total": ("models_moved_total", "Models that went from one trainer to another."),
    "breaker_trips_total": ("breaker_trips_total", "Times the circuit breaker opened."),
}
SLOTS = ("free", "held", "unloading", "quarantined")
MODELS = ("in_slot", "ready", "creating", "seeking", "recovering", "unseated")
PATHS = ("train", "sample")
_GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "slots": ("Slots of all trainers, by state; quarantined ones are lost until it restarts.", ("state",)),
    "models": (
        "Models by where they are: ready ones have something to run, seeking ones are unseated and want a slot.",
        ("state",),
    ),
    "queued_requests": (
        "Requests that wait: for train the heads of the models' queues, of at most 384 models.",
        ("path",),
    ),
    "queue_age_seconds": (
        "How long the oldest waiting request has waited, of the 384 foremost models and 256 foremost samples.",
        ("path", "tenant_class"),
    ),
    "gap_seconds": ("How long the longest has waited for a command that is missing before later ones.", ()),
    "seek_seconds": ("How long the first model in line has waited for a slot.", ()),
    "running_units": ("Units sent and not settled.", ()),
    "running_samples": ("Samples at samplers.", ()),
    "captures": ("Saves captured and not published yet.", ()),
    "log_bytes": ("Payloads kept for replay.", ()),
    "log_entries": ("Entries of the longest log of a model in a slot.", ()),
    "window_entries": ("Entries of the longest open window: what its next step or durable point will cover.", ()),
    "durable_lag_steps": ("Most steps of a model that no durable point covers yet.", ()),
    "durable_due": ("Models whose durable point is due.", ()),
    "durable_overdue_seconds": ("How long the longest has been due, as this leader saw it.", ()),
    "recovering_seconds": ("How long the longest has been in recovery.", ()),
    "replay_entries_done": ("Log entries that recovering models have replayed.", ()),
    "replay_entries_left": ("Log entries that recovering models have still to replay.", ()),
    "breaker_open": ("1 while the trainer gets no work until it has restarted.", ()),
    "trainers": ("Trainers that have ever registered, by state.", ("state",)),
    "samplers": ("Samplers that have ever registered and were not replaced, by state.", ("state",)),
    "samplers_expected": ("1 where this mesh runs samplers.", ()),
}
NAMES = {name: POOL.declare(name, "gauge", text, ("pool", *labels)) for name, (text, labels) in _GAUGES.items()}
TOTAL_NAMES = {field: POOL.declare(name, "counter", text, ("pool",)) for field, (name, text) in TOTALS.items()}
MEANINGS = {one.name: one.meaning for one in POOL.declared}
LABELS = {one.name: one.labels for one in POOL.declared}

Values = dict[str, dict[tuple[str, ...], float]]


@dataclass(slots=True)
class _Shown:
    values: Values
    totals: dict[str, int]


class PoolShelf:
    """What is shown of each pool this replica leads. One per process."""

    def __init__(self) -> None:
        self._pools: dict[str, _Shown] = {}

    def show(self, pool: str, values: Values, totals: dict[str, int]) -> None:
        self._pools[pool] = _Shown(values, totals)

    def forget(self, pool: str) -> None:
        self._pools.pop(pool, None)

    def collect(self) -> Iterator[Metric]:
        """Called by the thread of a scrape: each pool's entry is replaced as a whole."""
        pools = sorted(self._pools.items())
        for name, full in NAMES.items():
            family = GaugeMetricFamily(full, MEANINGS[full], labels=LABELS[full])
            for pool, shown in pools:
                for labels, value in shown.values.get(name, {}).items():
                    family.add_metric([pool, *labels], value)
            yield family
        for entry, full in TOTAL_NAMES.items():
            counter = CounterMetricFamily(full, MEANINGS[full], labels=LABELS[full])
            for pool, shown in pools:
                counter.add_metric([pool], max(0, shown.totals.get(entry, 0)))
            yield counter


SHELF = PoolShelf()
SCHEDULER.add_source(SHELF)


class PoolMetrics:
    """Implements ports.LeaderTask."""

    def __init__(
        self,
        reader: PoolStateReader,
        registry: RegistryStore,
        *,
        valid_ms: int,
        samplers: bool,
        shelf: PoolShelf = SHELF,
    ) -> None:
        self._reader = reader
        self._registry = registry
        self._valid_ms = valid_ms
        self._samplers = samplers
        self._shelf = shelf

    async def run(self, pool: str, term: int) -> None:
        """Until cancelled."""
        due: dict[str, int] = {}
        missed = 0
        try:
            while True:
                try:
                    await self._look(pool, due)
                    missed = 0
                except Exception as error:  # noqa: BLE001 - a leader's term must not end for want of its metrics
                    missed += 1
                    level = logging.DEBUG if isinstance(error, Unavailable) else logging.ERROR
                    log.log(level, "pool %s: its metrics are not read: %s", pool, error, exc_info=level > logging.DEBUG)
                    if missed >= FORGET_LOOKS:
                        self._shelf.forget(pool)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._shelf.forget(pool)

    async def _look(self, pool: str, due: dict[str, int]) -> None:
        state = await self._reader.read(pool)
        for model_id in set(due) - state.due_durables:
            del due[model_id]
        for model_id in state.due_durables:
            due.setdefault(model_id, state.now_ms)
        values = values_of(state, (state.now_ms - min(due.values())) / 1000 if due else 0.0)
        values["trainers"] = _by_state(("live", "draining", "lost"), await self._states(pool, "trainers"))
        values["samplers"] = _by_state(("live", "lost"), await self._states(pool, "samplers"))
        values["samplers_expected"] = {(): float(self._samplers)}
        self._shelf.show(pool, values, state.counters)

    async def _states(self, pool: str, kind: Kind) -> list[str]:
        return [
            "lost" if member.seen_ms_ago > self._valid_ms else "draining" if member.draining else "live"
            for member in await self._registry.members(pool, kind)
        ]


def values_of(state: PoolState, overdue_seconds: float) -> Values:
    single = {
        "gap_seconds": state.gap_seconds,
        "seek_seconds": state.seek_seconds,
        "running_units": state.running_units,
        "running_samples": state.running_samples,
        "captures": state.captures,
        "log_bytes": max(0, state.counters.get("log_bytes", 0)),
        "log_entries": state.log_entries,
        "window_entries": state.window_entries,
        "durable_lag_steps": state.steps_since,
        "durable_due": len(state.due_durables),
        "durable_overdue_seconds": overdue_seconds,
        "recovering_seconds": state.recovering_seconds,
        "replay_entries_done": state.replayed,
        "replay_entries_left": state.replay_left,
        "breaker_open": state.broken,
    }
    values: Values = {name: {(): float(value)} for name, value in single.items()}
    values["slots"] = {(name,): float(state.slots.get(name, 0)) for name in SLOTS}
    values["models"] = {(name,): float(state.models.get(name, 0)) for name in MODELS}
    values["queued_requests"] = {(path,): float(state.queued.get(path, 0)) for path in PATHS}
    values["queue_age_seconds"] = {
        (path, name): state.ages.get((path, name), 0.0) for path in PATHS for name in TENANT_CLASSES
    }
    return values


def _by_state(states: tuple[str, ...], found: list[str]) -> dict[tuple[str, ...], float]:
    return {(state,): float(found.count(state)) for state in states}
