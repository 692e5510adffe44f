"""Entries of a model's log as functions/_log.lua stores them."""

from __future__ import annotations

import msgspec

from services.scheduler.core.seats import LogEntry


class _Stored(msgspec.Struct):
    o: str
    k: str
    u: str
    g: int
    p: int = 1
    f: int = 0
    n: int = 1
    l: str = ""  # noqa: E741 - the letter that is stored
    x: int = 0
    d: str = ""
    z: int = 0


_DECODER = msgspec.json.Decoder(_Stored)


def decode_entry(text: bytes, position: int) -> LogEntry:
    entry = _DECODER.decode(text)
    return LogEntry(
        position=position,
        op=entry.o,
        key=entry.k,
        unit=entry.u,
        number=entry.g,
        models=entry.p,
        first=entry.f,
        count=entry.n,
        value=entry.l,
        skipped=entry.x == 1,
        directory=entry.d,
        optimizer=entry.z == 1,
    )
