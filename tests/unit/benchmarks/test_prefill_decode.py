"""What counts of streams beside long prompts."""

import pytest

from benchmarks.placed import Told
from benchmarks.prefill_decode import _seen


def test_gaps_and_tokens_count_while_long_prompts_are_on_their_way() -> None:
    slow = Told(0.0, [1.0, 2.0, 2.5, 3.5, 9.0])
    quick = Told(0.5, [1.0, 2.0, 2.0, 4.0])
    seen = _seen([[slow], [quick]], [Told(1.5, [3.0]), Told(2.5, [3.5]), Told(3.0, [8.0])])
    assert (seen.p50, seen.p99) == (1000, 2000)  # of 1, 0.5, 1 and 1, 0, 2 s
    assert seen.rate == 6 / 2.5  # from the first long prompt's arrival to the end of the first caller that was done
    assert (seen.first, seen.second, seen.long_first) == (750, 1000, 1500)
    assert seen.beside == pytest.approx(200 / 3)
