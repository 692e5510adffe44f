"""Outcomes are believed as a whole or not at all."""

from __future__ import annotations

import math

import pytest

from services.scheduler.core.outcomes import (
    DatumReport,
    Fault,
    SlotExpectation,
    SlotReport,
    pass_violation,
    slots_violation,
)

OK = DatumReport(1.5)
FAILED = DatumReport(math.nan, Fault("poison"))


def test_a_complete_pass_is_accepted_with_and_without_failed_datums_FAIL_09() -> None:
    assert pass_violation([3, 4], [OK, OK], 28) == ""
    assert pass_violation([3, 4], [OK, FAILED], 12) == ""


@pytest.mark.parametrize(
    ("sizes", "reports", "payload", "word"),
    [
        ([3, 4], [OK], 12, "1 datum outcomes for 2"),
        ([3], [OK, OK], 24, "2 datum outcomes for 1"),
        ([3], [OK], 8, "8 bytes"),
        ([3, 4], [OK, FAILED], 28, "28 bytes"),
        ([3], [DatumReport(math.nan)], 12, "loss nan"),
        ([3], [DatumReport(math.inf)], 12, "loss inf"),
    ],
)
def test_a_pass_outcome_that_does_not_fit_is_a_violation_FAIL_09(
    sizes: list[int], reports: list[DatumReport], payload: int, word: str
) -> None:
    assert word in pass_violation(sizes, reports, payload)


WANTED = [SlotExpectation(0, 5, "a"), SlotExpectation(2, 7, "b")]


def slot(number: int, load: int, request: str, **metrics: float) -> SlotReport:
    return SlotReport(number, load, metrics, None, request)


def test_exactly_the_asked_slots_are_accepted_FAIL_08() -> None:
    assert slots_violation(WANTED, [slot(2, 7, "b", grad_norm=1.0), slot(0, 5, "a")]) == ""
    assert slots_violation([SlotExpectation(1, None)], [slot(1, 99, "")]) == ""
    failed = SlotReport(2, 0, {"grad_norm": math.nan}, Fault("died"), "b")
    assert slots_violation(WANTED, [slot(0, 5, "a"), failed]) == ""


@pytest.mark.parametrize(
    ("reports", "word"),
    [
        ([slot(0, 5, "a")], "outcomes for slots [0]"),
        ([slot(0, 5, "a"), slot(1, 7, "b")], "outcomes for slots [0, 1]"),
        ([slot(0, 5, "a"), slot(2, 7, "b"), slot(2, 7, "b")], "outcomes for slots [0, 2, 2]"),
        ([slot(0, 5, "a"), slot(2, 6, "b")], "load number 6"),
        ([slot(0, 5, "a"), slot(2, 7, "c")], "request 'c'"),
        ([slot(0, 5, "a"), slot(2, 7, "b", grad_norm=math.inf)], "not finite"),
    ],
)
def test_any_mismatch_of_slots_is_a_violation_FAIL_08(reports: list[SlotReport], word: str) -> None:
    assert word in slots_violation(WANTED, reports)
