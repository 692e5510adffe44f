"""Spans of a request's way through the pool; nothing is built while tracing is off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from services.common import telemetry
from services.common.clock import now_ms
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.commands import StoredCommand


@contextmanager
def unit_span(prepared: Prepared, stored: Mapping[str, StoredCommand]) -> Iterator[None]:
    """Under the oldest request's trace, linked to every request it packs; the trainer's spans lie inside.

    Each other request gets a unit span of its own, of the same time, linked to that one.
    """
    packed = [stored[key] for key in dict.fromkeys(prepared.keys) if key in stored and stored[key].traceparent]
    if not telemetry.enabled() or not packed or prepared.unit.replay:  # its requests were traced long ago
        yield
        return
    seed = next((command for command in packed if command.key == prepared.seed), packed[0])
    started = now_ms()
    links = [command.traceparent for command in packed]
    with telemetry.span("unit", _attributes(prepared, seed), parent=seed.traceparent, links=links):
        try:
            yield
        finally:
            shared = [telemetry.current_traceparent()]
            for command in packed:
                if command is not seed:
                    attributes = _attributes(prepared, command)
                    telemetry.record_span("unit", command.traceparent, started, now_ms(), attributes, links=shared)


def _attributes(prepared: Prepared, command: StoredCommand) -> telemetry.Attributes:
    return {
        **_ids(command),
        "unit_id": prepared.unit.unit_id,
        "unit.kind": str(prepared.unit.WhichOneof("work")),
        "unit.items": len(prepared.items),
    }


def _ids(command: StoredCommand) -> dict[str, str | int | float | bool]:
    return {"request_id": command.request_id, "model_id": command.model_id, "tenant_id": command.tenant}


def record_queued(commands: Iterable[StoredCommand]) -> None:
    """The time each request waited, from its admission to now."""
    if telemetry.enabled():
        for command in commands:
            telemetry.record_span("queue", command.traceparent, command.admitted_ms, now_ms(), _ids(command))


def record_settled(command: StoredCommand, started_ms: int, action: str) -> None:
    """The settlement of a request, from its outcome to now."""
    if telemetry.enabled():
        attributes = {**_ids(command), "action": action}
        telemetry.record_span("settle", command.traceparent, started_ms, now_ms(), attributes)
