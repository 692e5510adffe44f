"""The canonical datum: what is encoded comes back, and any range of datums is one slice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.datum_blocks import Datum, block_offsets, decode, encode
from services.common.errors import InvalidInput

FIELDS = ("advantages", "logprobs")


def make(length: int, width: int, seed: int) -> Datum:
    rng = np.random.default_rng(seed)
    return Datum(
        rng.integers(0, 1000, length, dtype=np.int32),
        rng.integers(0, 1000, (length, width), dtype=np.int32),
        {name: rng.standard_normal((length, width)).astype(np.float32) for name in FIELDS},
    )


def same(left: Datum, right: Datum) -> bool:
    return (
        np.array_equal(left.tokens, right.tokens)
        and np.array_equal(left.targets, right.targets)
        and all(np.array_equal(left.fields[name], right.fields[name]) for name in FIELDS)
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=6), st.data())
def test_any_range_of_datums_is_a_contiguous_slice(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    datums = [make(length, width, i) for i, (length, width) in enumerate(shapes)]
    payload = encode(datums, FIELDS)
    lengths, widths = [s[0] for s in shapes], [s[1] for s in shapes]
    offsets = block_offsets(lengths, widths, len(FIELDS))
    first = data.draw(st.integers(0, len(shapes) - 1))
    last = data.draw(st.integers(first, len(shapes) - 1)) + 1
    part = decode(payload[offsets[first] : offsets[last]], lengths[first:last], widths[first:last], FIELDS)
    assert all(same(a, b) for a, b in zip(part, datums[first:last], strict=True))


def test_wrong_size_is_refused() -> None:
    payload = encode([make(3, 1, 0)], FIELDS)
    with pytest.raises(InvalidInput, match="its table says"):
        decode(payload[:-1], [3], [1], FIELDS)


def test_decoding_copies_nothing() -> None:
    payload = encode([make(3, 1, 0)], FIELDS)
    assert not decode(payload, [3], [1], FIELDS)[0].tokens.flags.owndata
