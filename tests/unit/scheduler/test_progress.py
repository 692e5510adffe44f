"""How recovery gets on is told once per model, in the log and as a span."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from services.scheduler.core.seats import LogEntry, RecoveryView, ReplayQueue
from services.scheduler.dispatch import progress
from services.scheduler.dispatch.progress import Progress


def replaying(position: int) -> RecoveryView:
    entry = LogEntry(position, "forward_backward", "k", "u", 1)
    return RecoveryView(recovering=(ReplayQueue("m", "t", 0, 1, (entry,)),))


def test_a_model_is_told_of_when_it_is_over_and_only_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(progress.telemetry, "record_span", lambda name, *rest: spans.append((name, rest[-1])))
    caplog.set_level(logging.INFO)
    told = Progress("pool")
    told.seating("m")
    told.seen(replaying(4))
    told.seen(replaying(7))
    assert spans == []
    told.seen(RecoveryView())
    told.seen(RecoveryView())
    assert [(name, attributes["log.position"]) for name, attributes in spans] == [("scheduler.recover", 7)]
    assert "the recovery of model m ended" in caplog.text
