"""A short run of every fuzz target, what long runs have kept, and proof that the loop would notice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from tests.fuzz import csr_reference, http_target, targets
from tests.fuzz.__main__ import CORPUS
from tests.fuzz.loop import Fuzzer, Report, load
from tests.fuzz.targets import Finding, Target, decoders

SECONDS = 2.0
MOST = 20_000
NAMES = (*decoders(), "http")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def every() -> Iterator[dict[str, Target]]:
    with http_target.http() as http:
        yield {**decoders(), "http": http}


def told(report: Report) -> list[str]:
    return [f"{text}: {data[:300]!r}" for data, text in report.findings]


@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_a_decoder_API_06_VAL_13_VAL_14(every: dict[str, Target], name: str) -> None:
    """No exception but a UserError, no 5xx, memory and time bounded; seeds and kept inputs first."""
    fuzzer = Fuzzer(every[name], seed=20, known=load(CORPUS / name))
    report = fuzzer.run(SECONDS, MOST)
    assert told(report) == []
    assert report.executions > len(fuzzer.corpus) > 0
    assert report.edges >= report.seed_edges > 10


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_are_small_and_few(name: str) -> None:
    kept = load(CORPUS / name)
    assert 0 < len(kept) <= 64
    assert sum(map(len, kept)) < 128 << 10


def test_every_post_route_is_fuzzed(every: dict[str, Target]) -> None:
    driver = every["http"].run.__self__  # type: ignore[attr-defined]
    routes = {route.replace(":path}", "}").format(**http_target.IN_PATHS) for route in driver._routes}
    for seed in every["http"].seeds:
        every["http"].run(seed)
    assert routes <= driver.posted


# ---- negative controls -----------------------------------------------------------------------


def guarded(data: bytes) -> None:
    """Fails behind four conditions in a row: out of reach of chance, not of coverage."""
    if data[:1] != b"F":
        raise InvalidInput("1")
    if data[1:2] != b"U":
        raise InvalidInput("2")
    if data[2:3] != b"Z":
        raise InvalidInput("3")
    if data[3:4] == b"Z":
        raise ZeroDivisionError


def control(run: object, **more: object) -> Report:
    target = Target("control", run, (b"....",), (Path(__file__).parent,), **more)  # type: ignore[arg-type]
    return Fuzzer(target, seed=1).run(20.0, 400_000)


def test_the_loop_finds_what_only_coverage_leads_to() -> None:
    report = control(guarded)
    assert [text for _, text in report.findings] == ["ZeroDivisionError: "], report
    assert report.findings[0][0].startswith(b"FUZZ")


def greedy(data: bytes) -> None:
    bytes(1 << 22)


def test_the_loop_notices_memory() -> None:
    report = control(greedy, ceiling=1 << 20)
    assert "allocated" in report.findings[0][1]


def test_the_sparse_reference_would_notice_a_wrong_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.tensors, "_check_columns", lambda *_arguments: None)
    with pytest.raises((Finding, IndexError)):
        for shift in range(16):
            targets.run_csr(bytes((1, 2, 2, 3, 1)) + bytes((3, 0, 2, shift, shift, 1, 1)))


def test_the_sparse_reference_knows_good_from_bad() -> None:
    assert csr_reference.dense([5.0, 6.0], [0, 2], [0, 2], [3], 3, 1) == [5.0, 0.0, 6.0]
    assert csr_reference.dense([5.0, 6.0], [0, 1, 2], [1, 0], [2, 2], 2, 2) == [0.0, 5.0, 6.0, 0.0]
    for crow, col in (([0, 2], [2, 0]), ([0, 2], [1, 1]), ([0, 1], [0, 1]), ([1, 2], [0, 1]), ([0, 2], [-1, 1])):
        assert csr_reference.dense([1.0, 1.0], crow, col, [3], 3, 1) is None
