"""The arithmetic of `tinkermesh bench`."""

from __future__ import annotations

import pytest

from services.local.bench.figures import Timed, figure, quantile


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_quantile_is_the_smallest_value_that_so_many_stay_within(share: float, value: float) -> None:
    assert quantile([float(n) for n in range(100, 0, -1)], share) == value
    assert quantile([], share) == 0.0


def test_failed_operations_count_neither_as_done_nor_as_time() -> None:
    timed = [Timed("pass", 0.1, 100), Timed("pass", 0.3, 100), Timed("pass", 9.0, 100, "broken"), Timed("step", 5.0, 0)]
    found = figure("pass", timed, 2.0)
    assert (found.succeeded, found.failed, found.first_failure) == (2, 1, "broken")
    assert (found.ops_per_second, found.tokens_per_second) == (1.0, 100.0)
    assert (found.p50_ms, found.p99_ms) == (100.0, 300.0)
    nothing = figure("sample", timed, 0.0)
    assert (nothing.succeeded, nothing.ops_per_second, nothing.p50_ms) == (0, 0.0, 0.0)
