"""What became of a request, told to the log and to its trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from services.common import logs, telemetry
from services.scheduler.dispatch import traces
from services.scheduler.dispatch.units import Prepared
from services.scheduler.store.commands import StoredCommand
from services.scheduler.store.training import Settlement

log = logging.getLogger(__name__)

_RECOVERY_TROUBLE = ("seat_failed", "diverged", "durable_failed", "resave_failed")
_TROUBLE = ("fail", "quarantine", "again")


def report_unit(
    prepared: Prepared, stored: Mapping[str, StoredCommand], entries: Sequence[Settlement], started_ms: int
) -> None:
    """One line and one span per item; `started_ms`: when the trainer's outcome was there."""
    for item, entry in zip(prepared.items, entries, strict=True):
        detail = str(entry.data) if entry.action in _TROUBLE else ""
        command = stored.get(item.k)
        if command is None:
            _log(item.o or "unload", entry.action, detail, model_id=item.m)
        else:
            report(command, entry.action, detail, started_ms)


def report_recovery(prepared: Prepared, entries: Sequence[Settlement]) -> None:
    """Quiet while all is well: its requests were told of long ago."""
    for item, entry in zip(prepared.items, entries, strict=True):
        with logs.bind(model_id=item.m):
            if entry.action in _RECOVERY_TROUBLE:
                log.error("%s: %s: %s", item.x, entry.action, entry.data)
            else:
                log.debug("%s: %s", item.x, entry.action)


def report(command: StoredCommand, action: str, detail: str, started_ms: int) -> None:
    """`action` as in Settlement."""
    traces.record_settled(command, started_ms, action)
    _log(
        str(command.command.WhichOneof("body")),
        action,
        detail,
        request_id=command.request_id,
        model_id=command.model_id,
        tenant_id=command.tenant,
        trace_id=telemetry.trace_id_of(command.traceparent) if telemetry.enabled() else "",
    )


def _log(what: str, action: str, detail: str, **ids: str) -> None:
    with logs.bind(**ids):
        if action in _TROUBLE:
            log.warning("%s: %s: %s", what, action, detail)
        else:
            log.info("%s: %s", what, action)
