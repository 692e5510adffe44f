"""Faults planted on purpose, so that the checker can be seen to find them: TINKERMESH_CHAOS_PLANT names one."""

from __future__ import annotations

import itertools
from typing import Any

EVERY = 9


def plant(name: str) -> None:
    """Raises KeyError for an unknown one."""
    _PLANTS[name]()


def _lost_gradient() -> None:
    from tests.doubles import arithmetic

    original, calls = arithmetic.accumulate, itertools.count(1)

    def forgetful(*arguments: Any) -> None:
        if next(calls) % EVERY:
            original(*arguments)

    arithmetic.accumulate = forgetful  # type: ignore[assignment]


_PLANTS = {"lost_gradient": _lost_gradient}
