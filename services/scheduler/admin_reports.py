"""Rows as the Admin service shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tinkermesh.v1 import admin_pb2 as pb

from services.common.cells import FIRST_CELL
from services.common.ids import ModelId, is_session_id
from services.scheduler.operations.paging import no_cursor
from services.scheduler.store.overview import Row
from services.scheduler.store.registry import Member
from services.scheduler.store.requests import Head
from services.scheduler.store.sessions import Place, SessionRow
from services.scheduler.timeline import is_cut, timeline

PENDING_STATES = ("queued", "running")
PACKING_TOTALS = (
    "passes_total",
    "tokens_total",
    "tenants_total",
    "started_total",
    "queue_wait_ms_total",
    "solo_retries_total",
)
RECOVERY_TOTALS = (
    "log_bytes",
    "trainers_lost_total",
    "seated_total",
    "replay_units_total",
    "replay_faults_total",
    "replay_mismatches_total",
    "poisoned_total",
    "durables_total",
    "durable_failures_total",
    "pages_total",
    "moved_total",
)
MODEL_FIELDS = (
    "tenant",
    "state",
    "phase",
    "slot",
    "base",
    "base_pos",
    "applied",
    "log_end",
    "log_bytes",
    "steps_since",
    "cell",
)


def sampler_report(
    pool: str, member: Member, in_flight: Mapping[str, int], unpaired: Mapping[str, str]
) -> pb.SamplerReport:
    """`in_flight`: samples with a request row, `unpaired`: why it has no partner; both by sampler id."""
    registration = member.sampler()
    return pb.SamplerReport(
        pool=pool,
        sampler_id=member.member_id,
        incarnation=member.incarnation,
        address=registration.address,
        role=registration.role,
        seen_ms_ago=member.seen_ms_ago,
        in_flight=in_flight.get(member.member_id, 0),
        draining=member.draining,
        unpaired=unpaired.get(member.member_id, ""),
    )


def slot_report(pool: str, cell: str, slot: int, holder: str) -> pb.SlotReport:
    """`holder` is "", a model id, ``unload:<model id>`` or ``quarantine:<model id>``."""
    what, _, model_id = holder.partition(":")
    if what == "quarantine":
        return pb.SlotReport(pool=pool, cell=cell, slot=slot, state="quarantined", model_id=model_id)
    if what == "unload":
        return pb.SlotReport(pool=pool, cell=cell, slot=slot, state="held", model_id=model_id)
    return pb.SlotReport(pool=pool, cell=cell, slot=slot, state="held" if holder else "free", model_id=holder)


def future_report(row: Row, now_ms: int) -> pb.FutureReport:
    state = "issued" if row["state"] == "running" else row["state"]
    return pb.FutureReport(
        request_id=row["request_id"],
        op=row["op"],
        state=state,
        model_id=row["parent"],
        tenant_id=row["tenant"],
        age_ms=now_ms - _number(row["admitted_ms"], now_ms),
    )


def request_report(row: Row, now_ms: int, trainers: Mapping[str, str]) -> pb.RequestReport:
    """`trainers`: ids by incarnation."""
    report = pb.RequestReport(
        future=future_report(row, now_ms),
        seq_id=_number(row["seq"]),
        arrival=_number(row["arrival"]),
        datums=_number(row["datums"]),
        datums_issued=_number(row["issued"]),
        unit_ids=row["units"].split(),
        traceparent=row["traceparent"],
        now_unix_ms=now_ms,
    )
    report.timeline.extend(timeline(row, trainers))
    report.timeline_cut = is_cut(row)
    return report


def head_of(row: Row) -> Head:
    return Head(
        tenant_id=row["tenant"],
        state=row["state"],
        result_bytes=_number(row["result_bytes"]),
        op=row["op"],
        kind=row["kind"],
        parent=row["parent"],
        seq=_number(row["seq"]),
    )


def _number(text: str, default: int = 0) -> int:
    return int(text) if text else default


def packing_report(counters: Mapping[str, str], budget: int) -> pb.Packing:
    """Totals of a pool and their means; `budget`: tokens of a full pass, 0 = not known."""
    totals = {name: int(counters.get(name, 0)) for name in PACKING_TOTALS}
    passes, started = totals["passes_total"], totals["started_total"]
    return pb.Packing(
        **totals,
        fill_ratio=totals["tokens_total"] / (passes * budget) if passes and budget else 0.0,
        tenants_per_pass=totals["tenants_total"] / passes if passes else 0.0,
        queue_wait_ms=totals["queue_wait_ms_total"] / started if started else 0.0,
    )


def session_report(row: SessionRow, models: Sequence[int], now_ms: int) -> pb.SessionReport:
    return pb.SessionReport(
        session_id=row.session_id,
        tenant_id=row.tenant_id,
        state=row.state,
        beat_ms_ago=now_ms - row.beat_ms,
        model_ids=[str(ModelId(row.session_id, seq)) for seq in models],
        sdk_version=row.sdk_version,
    )


def cursor_of(place: Place | None) -> str:
    return "" if place is None else f"{place.seen_ms}.{place.session_id}"


def place_of(cursor: str) -> Place | None:
    """Raises InvalidInput."""
    if not cursor:
        return None
    seen, _, session_id = cursor.partition(".")
    if not (seen.isascii() and seen.isdigit() and len(seen) < 17 and is_session_id(session_id)):
        raise no_cursor(cursor)
    return Place(int(seen), session_id)


def recovery_report(counters: Mapping[str, str], unseated: int, recovering: int) -> pb.Recovery:
    totals = {name: max(0, int(counters.get(name, 0))) for name in RECOVERY_TOTALS}
    return pb.Recovery(unseated_models=unseated, recovering_models=recovering, **totals)


def model_report(pool: str, model_id: str, row: Row, depth: int) -> pb.ModelReport:
    first = _number(row["base_pos"])
    return pb.ModelReport(
        pool=pool,
        model_id=model_id,
        tenant_id=row["tenant"],
        state=row["state"],
        phase=row["phase"],
        slot=_number(row["slot"], -1),
        replayed=max(0, _number(row["applied"]) - first) if row["phase"] in ("live", "replaying") else 0,
        log_entries=max(0, _number(row["log_end"]) - first),
        log_bytes=max(0, _number(row["log_bytes"])),
        steps_since=max(0, _number(row["steps_since"])),
        base=str(json.loads(row["base"]).get("kind", "")) if row["base"] else "",
        depth=depth,
        cell=row["cell"] or FIRST_CELL,
    )
