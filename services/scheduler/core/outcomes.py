"""Check a whole outcome against its unit before anything of it settles (FAIL-08, FAIL-09).

A violation is the trainer's fault and concerns every entry of the unit: none is a success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LOGPROB_BYTES = 4


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a part of a unit failed; `user` = the client must change something."""

    message: str
    user: bool = False


@dataclass(frozen=True, slots=True)
class DatumReport:
    loss: float
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class SlotReport:
    slot: int
    load_number: int
    metrics: Mapping[str, float]
    fault: Fault | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class SlotExpectation:
    """`load_number` is None when the unit itself loads the slot and so makes a new one."""

    slot: int
    load_number: int | None
    request_id: str = ""


def pass_violation(sizes: Sequence[int], reports: Sequence[DatumReport], payload_bytes: int) -> str:
    """Why the reports cannot belong to a pass over datums of `sizes` logprobs each; "" = they do."""
    if len(reports) != len(sizes):
        return f"{len(reports)} datum outcomes for {len(sizes)} datums"
    for index, report in enumerate(reports):
        if report.fault is None and not math.isfinite(report.loss):
            return f"datum {index} has loss {report.loss} and no failure"
    expected = LOGPROB_BYTES * sum(s for s, r in zip(sizes, reports, strict=True) if r.fault is None)
    if payload_bytes != expected:
        return f"{payload_bytes} bytes of logprobs where {expected} belong"
    return ""


def slots_violation(expected: Sequence[SlotExpectation], reports: Sequence[SlotReport]) -> str:
    """Why the reports are not exactly one per expected slot, each a failure or finite metrics; "" = they are."""
    wanted = {e.slot: e for e in expected}
    got = [r.slot for r in reports]
    if sorted(got) != sorted(wanted):
        return f"outcomes for slots {sorted(got)} where {sorted(wanted)} were asked"
    for report in reports:
        if problem := _report_violation(wanted[report.slot], report):
            return f"slot {report.slot}: {problem}"
    return ""


def _report_violation(expected: SlotExpectation, report: SlotReport) -> str:
    if report.request_id != expected.request_id:
        return f"request {report.request_id!r} where {expected.request_id!r} was asked"
    if report.fault is not None:
        return ""
    if expected.load_number is not None and report.load_number != expected.load_number:
        return f"load number {report.load_number} where {expected.load_number} was asked"
    bad = [name for name, value in report.metrics.items() if not math.isfinite(value)]
    return f"metrics {bad} are not finite" if bad else ""
