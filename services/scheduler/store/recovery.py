"""The recovery half of a pool's view, from what functions/view.lua answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.scheduler.core.seats import Due, RecoveryView, ReplayQueue, Seated, Seeker
from services.scheduler.store.log_entries import decode_entry


def recovery_view(answer: Sequence[Any]) -> RecoveryView:
    recovering, seekers, due, lost, unseated, seated, waiting, now = answer
    return RecoveryView(
        recovering=tuple(_queue(row) for row in recovering),
        seekers=tuple(_seeker(row) for row in seekers),
        due=tuple(Due(model.decode(), int(slot), int(load_number)) for model, slot, load_number in due),
        lost=tuple(_seeker(row) for row in lost),
        unseated=int(unseated),
        seated=tuple(_seated(row) for row in seated),
        create_since_ms=int(waiting) if waiting else None,
        now_ms=int(now),
    )


def _queue(row: Sequence[Any]) -> ReplayQueue:
    model, tenant, slot, load_number, waits, alone, applied, entries = row
    first = int(applied)
    return ReplayQueue(
        model_id=model.decode(),
        tenant=tenant.decode(),
        slot=int(slot),
        load_number=int(load_number),
        entries=tuple(decode_entry(text, first + index) for index, text in enumerate(entries)),
        waits=waits == b"1",
        alone=alone == b"1",
    )


def _seeker(row: Sequence[bytes]) -> Seeker:
    model, since, home = row
    return Seeker(model.decode(), int(float(since)), int(home) if home else None)


def _seated(row: Sequence[bytes]) -> Seated:
    model, slot, load_number, idle, since, uncovered, capturing = row
    return Seated(
        model_id=model.decode(),
        slot=int(slot),
        load_number=int(load_number),
        idle_since_ms=int(idle) if idle else None,
        seated_ms=int(since),
        uncovered=uncovered == b"1",
        capturing=capturing == b"1",
    )
