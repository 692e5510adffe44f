"""What happened to a request, in order: times of its row, and the events its row remembers (functions/_events.lua)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tinkermesh.v1 import admin_pb2 as pb

from services.scheduler.store.overview import Row

CUT = "cut"


def timeline(row: Row, trainers: Mapping[str, str]) -> list[pb.TimelineEntry]:
    """The oldest first; what has the same time stands in the order in which it happened. `trainers`: ids by
    incarnation."""
    found = [*_time(row, "admitted"), *_events(row, trainers), *_time(row, "captured"), *_time(row, "settled")]
    return sorted([*found, *_time(row, "delivered")], key=lambda entry: entry.unix_ms)


def is_cut(row: Row) -> bool:
    """Whether the oldest events are not kept any more."""
    return any(line.split("\t")[1:2] == [CUT] for line in row["events"].splitlines())


def _time(row: Row, event: str) -> Iterator[pb.TimelineEntry]:
    if at := int(row[f"{event}_ms"] or 0):
        yield pb.TimelineEntry(event=event, unix_ms=at, detail=row["state"] if event == "settled" else "")


def _events(row: Row, trainers: Mapping[str, str]) -> Iterator[pb.TimelineEntry]:
    if not row["events"] and row["issued_ms"]:  # admitted by a release that did not keep them
        yield pb.TimelineEntry(event="issued", unix_ms=int(row["issued_ms"]), detail=row["units"])
    for line in row["events"].splitlines():
        at, event, unit, where, detail, ran = (*line.split("\t"), "", "", "", "")[:6]
        if event == CUT:
            continue
        entry = pb.TimelineEntry(event=event, unix_ms=int(at), unit_id=unit, ran_ms=int(ran or 0))
        if row["kind"] == "sample":
            entry.sampler_id = where
        else:
            entry.incarnation, entry.trainer_id = where, trainers.get(where, "")
        if event == "executed":
            entry.outcome = detail
        else:
            entry.detail = detail
        yield entry
