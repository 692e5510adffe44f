"""The recorder of measured numbers: it keeps what it is told, and insists on it."""

from __future__ import annotations

import math

import pytest

from tests.evidence.table import Claim, Measurements, missing, render


def test_number_above_its_tolerance_fails_and_is_still_in_the_table() -> None:
    measured = Measurements()
    with pytest.raises(AssertionError, match="0.002 > 0.001"):
        measured(Claim.SAMPLER, "tiny", 2e-3, within=1e-3, base=5.0)
    assert [(row.subject, row.measured, row.control) for row in measured.rows] == [("tiny", 2e-3, "base")]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_number_that_is_none_fails(number: float) -> None:
    measured = Measurements()
    with pytest.raises(AssertionError):
        measured(Claim.SAMPLER, "tiny", number, within=1e-3, base=5.0)


@pytest.mark.parametrize("control", [1e-3, 0.0, math.nan])
def test_control_that_would_pass_fails(control: float) -> None:
    with pytest.raises(AssertionError, match="the base passes too"):
        Measurements()(Claim.SAMPLER, "tiny", 0.0, within=1e-3, the_base=control)


def test_number_without_a_control_is_refused() -> None:
    with pytest.raises(AssertionError, match="shows nothing"):
        Measurements()(Claim.RESUME, "tiny", 0.0, within=0.0)


def test_table_goes_by_claim_and_names_bitwise() -> None:
    measured = Measurements()
    measured(Claim.RESUME, "engine", 0.0, within=0.0, weights_only=0.5)
    measured(Claim.LOGPROBS, "tiny", 1.25e-5, within=1e-4, another_model=8.0)
    header, rule, first, second = render(measured.rows)
    assert "negative control" in header
    assert set(rule) == {"|", "-", " "}
    assert [cell.strip() for cell in first.split("|")[2:-1]] == ["tiny", "1.3e-05", "0.0001", "another model", "8"]
    assert [cell.strip() for cell in second.split("|")[2:-1]] == ["engine", "0", "0 (bitwise)", "weights only", "0.5"]
    assert len({len(line) for line in (header, rule, first, second)}) == 1
    assert Claim.PACKED.value in missing(measured.rows)
    assert Claim.RESUME.value not in missing(measured.rows)
