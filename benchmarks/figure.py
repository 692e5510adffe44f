"""One measured figure: its samples, their median and spread, and the target it is held to."""

from __future__ import annotations

import operator
import sys
from statistics import median
from typing import Literal

import msgspec

Verdict = Literal["met", "missed", ""]
_COMPARE = {"<=": operator.le, ">=": operator.ge}


class Figure(msgspec.Struct, frozen=True):
    """`samples`: one value per repetition. `target`: ``>= 0.95``, ``<= 8`` or nothing."""

    name: str
    samples: list[float]
    unit: str
    target: str = ""
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest repetition."""
        return min(self.samples), max(self.samples)

    @property
    def verdict(self) -> Verdict:
        """Raises ValueError when the target is not of the form above."""
        if not self.target:
            return ""
        sign, _, bound = self.target.partition(" ")
        if sign not in _COMPARE:
            raise ValueError(f"target {self.target!r} does not start with one of {', '.join(_COMPARE)}")
        return "met" if _COMPARE[sign](self.value, float(bound)) else "missed"


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # ceiling
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def emit(figures: list[Figure]) -> None:
    """The last act of a benchmark that runs in its own process: one line of JSON on stdout."""
    sys.stdout.write(msgspec.json.encode(figures).decode() + "\n")
    sys.stdout.flush()


def parse(stdout: str) -> list[Figure]:
    """What `emit` wrote as the last line of `stdout`. Raises ValueError (msgspec's included)."""
    lines = stdout.strip().splitlines()
    if not lines:
        raise ValueError("the benchmark wrote no figures")
    return msgspec.json.decode(lines[-1], type=list[Figure])
