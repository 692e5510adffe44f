"""What a measurement came to: rates, and latencies as a share of the operations stayed within."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Timed(NamedTuple):
    """One operation: from the first byte sent to the result in hand, or to its failure."""

    op: str
    seconds: float
    tokens: int
    failure: str = ""


class Figure(msgspec.Struct, frozen=True):
    """Of one kind of operation. Times in milliseconds, of those that succeeded; rates over the phase's whole time."""

    op: str
    succeeded: int
    failed: int
    ops_per_second: float
    tokens_per_second: float
    p50_ms: float
    p99_ms: float
    first_failure: str = ""


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # ceiling
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def figure(op: str, timed: Sequence[Timed], elapsed: float) -> Figure:
    """`elapsed`: seconds of the phase in which the operations `op` of `timed` ran."""
    mine = [one for one in timed if one.op == op]
    good = [one for one in mine if not one.failure]
    seconds = [one.seconds for one in good]
    return Figure(
        op=op,
        succeeded=len(good),
        failed=len(mine) - len(good),
        ops_per_second=round(len(good) / elapsed, 3) if elapsed else 0.0,
        tokens_per_second=round(sum(one.tokens for one in good) / elapsed, 1) if elapsed else 0.0,
        p50_ms=round(1000 * quantile(seconds, 0.5), 3),
        p99_ms=round(1000 * quantile(seconds, 0.99), 3),
        first_failure=next((one.failure for one in mine if one.failure), ""),
    )
