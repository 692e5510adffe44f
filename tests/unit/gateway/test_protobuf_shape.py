"""Counting a protobuf body's parts before it is parsed (VAL-14)."""

from __future__ import annotations

import pytest

from services.common.errors import InvalidInput
from services.gateway.wire import protobuf_shape
from services.gateway.wire.protobuf_shape import bounded
from tests.doubles.wire_client import batch

EMPTY_DATUM, EMPTY_CHUNK = b"\x1a\x00", b"\x0a\x00"


@pytest.fixture(autouse=True)
def counts_small_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_shape, "FREE_BYTES", 0)


def datum(content: bytes) -> bytes:
    size = len(content)
    return b"\x1a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content


def test_an_ordinary_body_is_parsed_whole() -> None:
    body = batch("s:train:0", 1, 1, datums=40, length=300)
    assert bounded(body, 40, 40 * 3 + 43) == (len(body), True)


def test_one_datum_more_than_the_limit_is_kept_so_that_the_limit_is_named() -> None:
    head = batch("s:train:0", 1, 1, datums=1)
    assert bounded(head + EMPTY_DATUM * 9, 3, 1000) == (len(head) + 3 * len(EMPTY_DATUM), True)


def test_a_datum_of_too_many_chunks_is_left_out() -> None:
    head = batch("s:train:0", 1, 1, datums=1)
    assert bounded(head + datum(EMPTY_CHUNK * 5000), 8, 1000) == (len(head), False)


def test_parts_of_all_datums_count_together() -> None:
    one = datum(EMPTY_CHUNK * 300)
    assert bounded(one * 5, 8, 1000) == (3 * len(one), False)


@pytest.mark.parametrize(
    "hidden",
    [b"\x0b" + EMPTY_DATUM, b"\xff" * 11, b"\x1a\xff\xff\x7f", b"\x09\x00", b"\x0d", b"\x1a"],
    ids=["group", "endless varint", "longer than the body", "cut 64 bit", "cut 32 bit", "no length"],
)
def test_what_the_walk_cannot_follow_is_refused_not_skipped(hidden: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a valid ForwardBackwardRequest"):
        bounded(hidden, 8, 1000)
    with pytest.raises(InvalidInput, match="not a valid ForwardBackwardRequest"):
        bounded(datum(hidden), 8, 1000)


def test_an_overlong_tag_hides_no_datum() -> None:
    assert bounded(b"\x9a\x80\x00\x00" * 9, 3, 1000) == (16, True)
