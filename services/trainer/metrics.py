"""What a trainer counts, on rank 0. Imports no torch: the double of the tests counts with it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.metrics import MetricSet, known
from services.common.tinker_path import DURABLE, EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, WEIGHTS

TRAINER = MetricSet("tinkermesh_trainer")

UNIT_KINDS = ("pass", "optim", "init", "load", "unload", "save", "snapshot")
ARTIFACT_KINDS = (WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS, DURABLE)

_units = TRAINER.counter(
    "units_total", "Units run, by kind and how they ended; recovery's are among them.", ["kind", "outcome"]
)
_seconds = TRAINER.histogram("unit_seconds", "Time of a unit.", ["kind"])
_busy = TRAINER.counter("busy_seconds_total", "Time in units: its rate is the share of time this trainer works.")
_running = TRAINER.gauge("running", "1 while a unit runs.")
_tokens = TRAINER.counter("pass_tokens_total", "Tokens of passes that ran.")
_datums = TRAINER.counter("pass_datums_total", "Datums of passes that ran.")
_slots = TRAINER.gauge("slots", "Slots by state; unclean ones hold no model and could not be cleaned.", ["state"])
_windows = TRAINER.gauge("open_windows", "Slots with gradients that no optimizer step has used.")
_published = TRAINER.counter(
    "publications_total",
    "Saves, snapshots and durable points written, by kind and how that ended.",
    ["kind", "outcome"],
)
_publish_seconds = TRAINER.histogram("publish_seconds", "Time to write and publish one.", ["kind"])
_published_bytes = TRAINER.counter("published_bytes_total", "Bytes of what was published.", ["kind"])
_waiting = TRAINER.gauge("publications_waiting", "Captured in memory and not written yet.")
_waiting_most = TRAINER.gauge("publications_waiting_limit", "How many of those may wait before saves are refused.")
_device = TRAINER.gauge(
    "device_memory_bytes", "Memory of rank 0's GPU that tensors hold, and that is reserved; 0 without one.", ["kind"]
)

for _kind in UNIT_KINDS:
    _units.labels(_kind, "ok")
    _units.labels(_kind, "failed")


def unit_started() -> None:
    _running.set(1)


def unit_ended(unit: pb.Unit, outcome: pb.UnitOutcome) -> None:
    kind, failed = known(unit.WhichOneof("work") or "", UNIT_KINDS), outcome.HasField("failure")
    _running.set(0)
    _units.labels(kind, "failed" if failed else "ok").inc()
    _seconds.labels(kind).observe(outcome.execute_seconds)
    _busy.inc(outcome.execute_seconds)
    if kind == "pass" and not failed:
        items = getattr(unit, "pass").items
        _tokens.inc(sum(length + 1 for item in items for length in item.lengths))
        _datums.inc(sum(len(item.lengths) for item in items))


@contextmanager
def publication(kind: str) -> Iterator[None]:
    """Around one attempt to publish; what it raises is a failed one."""
    name, started, outcome = known(kind, ARTIFACT_KINDS), perf_counter(), "failed"
    try:
        yield
        outcome = "ok"
    finally:
        _published.labels(name, outcome).inc()
        _publish_seconds.labels(name).observe(perf_counter() - started)


def published_bytes(kind: str, size: int) -> None:
    _published_bytes.labels(known(kind, ARTIFACT_KINDS)).inc(size)


def watching(
    slots: Callable[[], Sequence[pb.SlotState]],
    unclean: Callable[[], int],
    waiting: Callable[[], int],
    waiting_most: int,
) -> None:
    """Read at each scrape, by its thread."""
    _slots.labels("loaded").set_function(lambda: float(sum(slot.loaded for slot in slots())))
    _slots.labels("unclean").set_function(lambda: float(unclean()))
    _slots.labels("free").set_function(lambda: float(sum(not slot.loaded for slot in slots()) - unclean()))
    _windows.set_function(lambda: float(sum(slot.window_open for slot in slots())))
    _waiting.set_function(lambda: float(waiting()))
    _waiting_most.set(waiting_most)


def watching_device(allocated: Callable[[], int], reserved: Callable[[], int]) -> None:
    """Read at each scrape."""
    _device.labels("allocated").set_function(lambda: float(allocated()))
    _device.labels("reserved").set_function(lambda: float(reserved()))
