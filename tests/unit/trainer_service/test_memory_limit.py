"""Admission by a measured memory estimate: the line through the probes, its limit, and who refuses what."""

from __future__ import annotations

import numpy as np
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import LossConfig

from services.common.datum_blocks import Datum, encode
from services.trainer.control import Alone
from services.trainer.failures import RanksDiverged, Status
from services.trainer.memory_limit import MARGIN, MEBIBYTE, fit, measure
from services.trainer.passes import PassLimits, prepare
from services.trainer.slot_table import SlotTable
from tests.contract.trainer.harness import LAYOUT

LENGTHS = (128, 256, 512)


def peaks(slope: int, fixed: int = 0) -> list[int]:
    return [fixed + slope * length for length in LENGTHS]


class Measured:
    """An engine that tells what it was told."""

    def __init__(self, found: list[int], free: int = 0) -> None:
        self._found, self._free = found, free

    def pass_peaks(self, lengths: object) -> list[int]:
        return self._found

    def free_memory(self) -> int:
        return self._free


class Pair(Alone):
    """Two ranks; the other's word is given."""

    world = 2

    def __init__(self, other: str) -> None:
        self._other = other

    def vote(self, status: Status) -> list[Status]:
        return [status, Status(message=self._other)]


def test_the_estimate_is_the_line_through_the_probes_with_a_margin() -> None:
    found = fit(LENGTHS, peaks(1000, 5000), 1 * MEBIBYTE)
    assert found.slope == pytest.approx(MARGIN * 1000)
    assert found.fixed == pytest.approx(MARGIN * 5000)
    assert found.max_tokens == int((MEBIBYTE - MARGIN * 5000) / (MARGIN * 1000))
    assert found.problem(found.max_tokens) == ""
    assert "up to 868 tokens" in found.problem(found.max_tokens + 1)


def test_the_steepest_part_counts_and_noise_never_makes_it_free() -> None:
    assert fit(LENGTHS, [0, 0, 256_000], MEBIBYTE).slope == pytest.approx(MARGIN * 1000)
    assert fit(LENGTHS, [5, 5, 5], MEBIBYTE).max_tokens >= 1
    assert fit(LENGTHS, peaks(10**9), MEBIBYTE).max_tokens == 1


def test_the_refusal_names_estimate_and_limit_FAIL_15() -> None:
    text = fit(LENGTHS, peaks(MEBIBYTE), 100 * MEBIBYTE).problem(50_000)
    assert "datum has 50000 tokens" in text
    assert "about 60000 MiB" in text
    assert "has 100 MiB" in text
    assert "up to 83 tokens" in text


def test_all_ranks_take_the_smallest_estimate() -> None:
    found = measure(Measured(peaks(1000)), Pair("0.0 2400.0 1048576"), 4096, 1)  # type: ignore[arg-type]
    assert found is not None
    assert found.slope == 2400.0
    assert measure(Measured(peaks(1000)), Pair(""), 4096, 1) is None  # type: ignore[arg-type]
    with pytest.raises(RanksDiverged):
        measure(Measured(peaks(1000)), Pair("nonsense"), 4096, 1)  # type: ignore[arg-type]


def test_without_a_setting_most_of_the_free_memory_is_the_limit() -> None:
    found = measure(Measured(peaks(1000), free=1000 * MEBIBYTE), Alone(), 4096, 0)  # type: ignore[arg-type]
    assert found is not None
    assert found.limit == 900 * MEBIBYTE


def test_an_engine_that_cannot_tell_sets_no_limit() -> None:
    assert measure(Measured([]), Alone(), 4096, 64) is None  # type: ignore[arg-type]
    assert measure(Measured(peaks(1000)), Alone(), 128, 64) is None  # type: ignore[arg-type]  # one probe makes no line
    assert measure(Measured(peaks(1000), free=0), Alone(), 4096, 0) is None  # type: ignore[arg-type]


def test_a_datum_beyond_the_estimate_is_refused_alone_before_any_collective_FAIL_13() -> None:
    table = SlotTable(1)
    table.fill(0, LAYOUT, 0)
    lengths = [40, 41, 3]
    datums = [Datum(np.zeros(n, np.int32), np.zeros((n, 1), np.int32), {}) for n in lengths]
    item = pb.PassItem(request_id="r", load_number=1, lengths=lengths, widths=[1, 1, 1])
    work = pb.PassWork(loss=LossConfig(loss_fn="cross_entropy"), items=[item])
    limits = PassLimits(32, 64, fit(LENGTHS, peaks(1000), int(40 * MARGIN * 1000)))
    prepared = prepare(work, encode(datums, []), table, limits)
    assert set(prepared.refused) == {1}
    assert prepared.refused[1].category == 1
    assert [d.datum.length for d in prepared.datums] == [40, 3]
