"""Ranges of single numbers, with texts that name the field."""

from __future__ import annotations

import math

from services.common.errors import InvalidInput


def finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, not {value}")
    return value


def at_least(name: str, value: float, low: float) -> float:
    if finite(name, value) < low:
        raise InvalidInput(f"{name} must be >= {low:g}, not {value:g}")
    return value


def above(name: str, value: float, low: float) -> float:
    if finite(name, value) <= low:
        raise InvalidInput(f"{name} must be > {low:g}, not {value:g}")
    return value


def below_one(name: str, value: float) -> float:
    if at_least(name, value, 0.0) >= 1.0:
        raise InvalidInput(f"{name} must lie in [0, 1), not {value:g}")
    return value


def whole(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidInput(f"{name} must lie in [{low}, {high}], not {value}")
    return value
