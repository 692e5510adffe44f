"""Variants measured in turns, so that a drifting machine touches all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def interleave(variants: Mapping[str, Callable[[], T]], repetitions: int, warmup: int = 0) -> dict[str, list[T]]:
    """Each variant's results, one per repetition; every other repetition runs in reverse order.

    `warmup` further repetitions come first and are thrown away.
    """
    results: dict[str, list[T]] = {name: [] for name in variants}
    for repetition in range(-warmup, repetitions):
        names = list(variants)
        for name in names if repetition % 2 == 0 else reversed(names):
            result = variants[name]()
            if repetition >= 0:
                results[name].append(result)
    return results


def ratio(results: Mapping[str, list[float]], above: str, below: str) -> list[float]:
    """`above` over `below` within each repetition: what both had to bear cancels out."""
    return [a / b for a, b in zip(results[above], results[below], strict=True)]
