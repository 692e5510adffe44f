"""Spans of a request's way through the pool; nothing is built while tracing is off."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from services.common import telemetry
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.commands import StoredCommand


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def unit_span(prepared: Prepared, stored: Mapping[str, StoredCommand]) -> Iterator[None]:
    """Under the seed's trace, linked to every request it packs; the trainer's spans lie inside."""
    if not telemetry.enabled():
        yield
        return
    unit = prepared.unit
    attributes: telemetry.Attributes = {
        "unit_id": unit.unit_id,
        "unit.kind": str(unit.WhichOneof("work")),
        "unit.items": len(prepared.items),
    }
    seed = stored.get(prepared.seed)
    links = [stored[key].traceparent for key in prepared.keys if key in stored]
    with telemetry.span("unit", attributes, parent=seed.traceparent if seed else "", links=links):
        yield


def record_queued(commands: Iterable[StoredCommand]) -> None:
    """The time each request waited, from its admission to now."""
    if telemetry.enabled():
        for command in commands:
            attributes = {"request_id": command.request_id, "model_id": command.model_id}
            telemetry.record_span("queue", command.traceparent, command.admitted_ms, now_ms(), attributes)


def record_settled(commands: Iterable[StoredCommand], started_ms: int) -> None:
    """The settlement of each request, from the trainer's outcome to now."""
    if telemetry.enabled():
        for command in commands:
            attributes = {"request_id": command.request_id, "model_id": command.model_id}
            telemetry.record_span("settle", command.traceparent, started_ms, now_ms(), attributes)
