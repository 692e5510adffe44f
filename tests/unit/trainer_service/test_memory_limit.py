"""Admission by a measured memory estimate: the line through the probes, its limit, and who refuses what."""

from __future__ import annotations

import numpy as np
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.types_pb2 import LossConfig

from services.common.datum_blocks import Datum, encode
from services.common.errors import InvalidInput
from services.trainer.control import Alone
from services.trainer.engine import SlotMemory
from services.trainer.failures import RanksDiverged, Status
from services.trainer.memory_limit import MARGIN, MEBIBYTE, MemoryEstimate, Reserve, fit, measure
from services.trainer.passes import PassLimits, prepare
from services.trainer.slot_table import SlotTable
from tests.contract.trainer.harness import LAYOUT

LENGTHS = (128, 256, 512)


def peaks(slope: int, fixed: int = 0) -> list[int]:
    return [fixed + slope * length for length in LENGTHS]


class Measured:
    """An engine that tells what it was told."""

    def __init__(self, found: list[int], free: int = 0, memory: SlotMemory | None = None) -> None:
        self._found, self._free, self._memory = found, free, memory or SlotMemory()

    def pass_peaks(self, lengths: object) -> list[int]:
        return self._found

    def free_memory(self) -> int:
        return self._free

    def slot_memory(self) -> SlotMemory:
        return self._memory


class Pair(Alone):
    """Two ranks; the other's word is given."""

    world = 2

    def __init__(self, other: str) -> None:
        self._other = other

    def vote(self, status: Status) -> list[Status]:
        return [status, Status(message=self._other)]


def measured(engine: Measured, control: Alone, context: int, limit_mib: int, slots: int = 8) -> MemoryEstimate | None:
    return measure(engine, control, context, limit_mib, slots=slots, pending=16)  # type: ignore[arg-type]


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
    found = measured(Measured(peaks(1000)), Pair("0.0 2400.0 1048576"), 4096, 1)
    assert found is not None
    assert found.slope == 2400.0
    assert measured(Measured(peaks(1000)), Pair(""), 4096, 1) is None
    with pytest.raises(RanksDiverged):
        measured(Measured(peaks(1000)), Pair("nonsense"), 4096, 1)


def test_without_a_setting_most_of_the_free_memory_is_the_limit() -> None:
    found = measured(Measured(peaks(1000), free=1000 * MEBIBYTE), Alone(), 4096, 0)
    assert found is not None
    assert found.limit == 900 * MEBIBYTE


def test_what_the_slots_will_take_is_not_for_passes_OPT_09() -> None:
    engine = Measured(peaks(1000), free=1000 * MEBIBYTE, memory=SlotMemory(slot=50 * MEBIBYTE, image=30 * MEBIBYTE))
    found = measured(engine, Alone(), 4096, 0, slots=8)
    assert found is not None
    assert found.limit == (900 - 8 * 50 - 8 * 30) * MEBIBYTE
    fewer = measured(engine, Alone(), 4096, 0, slots=2)
    assert fewer is not None
    assert fewer.limit - found.limit == 6 * (50 + 30) * MEBIBYTE


def test_captures_count_up_to_those_that_may_wait_and_the_one_being_written_OPT_09() -> None:
    memory = SlotMemory(slot=5, image=3)
    assert Reserve(memory, slots=8, pending=16).size == 8 * 5 + 8 * 3
    assert Reserve(memory, slots=8, pending=2).size == 8 * 5 + 3 * 3


def test_slots_that_leave_no_room_for_passes_are_refused_at_the_start_OPT_09() -> None:
    engine = Measured(peaks(MEBIBYTE), free=1000 * MEBIBYTE, memory=SlotMemory(60 * MEBIBYTE, 40 * MEBIBYTE))
    with pytest.raises(
        InvalidInput, match=r"slots=8: .* take up to 800 MiB .* leaves 100 MiB .* at most 7, lower max_rank"
    ):
        measured(engine, Alone(), 4096, 0, slots=8)
    assert measured(engine, Alone(), 4096, 0, slots=7) is not None  # what it says helps


def test_a_rank_without_room_ends_the_start_of_all_OPT_09() -> None:
    with pytest.raises(InvalidInput, match="slots=8"):
        measured(Measured(peaks(1000), free=1000 * MEBIBYTE), Pair("0.0 1000.0 -5"), 4096, 0)


def test_what_the_operator_states_counts_and_what_does_not_fit_is_said_OPT_09(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Measured(peaks(1000), free=1000 * MEBIBYTE, memory=SlotMemory(slot=200 * MEBIBYTE))
    found = measured(engine, Alone(), 4096, 64, slots=8)
    assert found is not None
    assert found.limit == 64 * MEBIBYTE
    assert "slots=8 may take 1600 MiB" in caplog.text
    assert "only 900 MiB are free: about 4 such slots fit" in caplog.text


def test_on_a_cpu_passes_keep_half_and_the_start_says_how_many_slots_fit_OPT_09(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = SlotMemory(60 * MEBIBYTE, 40 * MEBIBYTE, lazy=True)
    found = measured(Measured(peaks(MEBIBYTE), free=1000 * MEBIBYTE, memory=memory), Alone(), 4096, 0, slots=8)
    assert found is not None
    assert found.limit == 450 * MEBIBYTE
    assert "only 900 MiB are free: about 4 such slots fit" in caplog.text
    caplog.clear()
    fits = measured(Measured(peaks(MEBIBYTE), free=1000 * MEBIBYTE, memory=memory), Alone(), 4096, 0, slots=4)
    assert fits is not None
    assert fits.limit == 500 * MEBIBYTE
    assert "free" not in caplog.text


def test_an_engine_that_cannot_tell_sets_no_limit() -> None:
    assert measured(Measured([]), Alone(), 4096, 64) is None
    assert measured(Measured(peaks(1000)), Alone(), 128, 64) is None  # one probe makes no line
    assert measured(Measured(peaks(1000), free=0), Alone(), 4096, 0) is None


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
