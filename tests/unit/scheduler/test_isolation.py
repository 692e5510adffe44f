"""FAIL-13 on the core alone: labels, and how many units it takes to find what made a unit fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.core.isolation import next_groups


def isolate(count: int, fails: Callable[[Sequence[int]], bool], *, transient: int = 0) -> tuple[set[int], int]:
    """Requests that failed alone, and units run after the first; the first `transient` failures are called so."""
    labels, blamed, left = dict.fromkeys(range(count), ""), set[int](), set(range(count))
    numbers = itertools.count()
    while left:
        group = [i for i in sorted(left) if labels[i] == labels[min(left)]]
        number = next(numbers)
        if not fails(group):
            left -= set(group)
            continue
        groups = next_groups(f"u{number}", [labels[i] for i in group], transient=number < transient)
        labels.update(zip(group, groups, strict=bool(groups)))
        if not groups:
            blamed |= set(group)
            left -= set(group)
    return blamed, next(numbers) - 1


def bound(count: int) -> int:
    return 2 * math.ceil(math.log2(count)) + 1


@pytest.mark.parametrize("count", [2, 3, 6, 16, 24, 31, 64])
def test_one_offender_is_found_within_the_bound_at_every_place_FAIL_13(count: int) -> None:
    for poison in range(count):
        for transient in (0, 1):
            blamed, extra = isolate(count, lambda group, p=poison: p in group, transient=transient)  # type: ignore[misc]
            assert blamed == {poison}
            assert extra <= bound(count)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 40), st.data())
def test_exactly_the_offenders_are_blamed_FAIL_13(count: int, data: st.DataObject) -> None:
    poisons = data.draw(st.sets(st.integers(0, count - 1)))
    blamed, extra = isolate(count, lambda group: not poisons.isdisjoint(group), transient=data.draw(st.integers(0, 3)))
    assert blamed == poisons
    assert extra <= max(1, len(poisons)) * bound(count)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 40), st.data())
def test_what_fails_only_in_company_is_blamed_on_nobody_FAIL_13(count: int, data: st.DataObject) -> None:
    pair = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=2))
    blamed, extra = isolate(count, lambda group: pair <= set(group))
    assert blamed == set()
    assert extra <= bound(count)


def test_a_transient_failure_is_tried_once_more_as_it_was_FAIL_13() -> None:
    again = next_groups("u", ["", "", ""], transient=True)
    assert len(set(again)) == 1
    assert len(set(next_groups("v", again, transient=True))) == 2


def test_a_lone_request_gets_one_more_try_only_for_a_transient_failure_FAIL_13() -> None:
    assert next_groups("u", [""], transient=False) == []
    again = next_groups("u", [""], transient=True)
    assert len(again) == 1
    assert next_groups("v", again, transient=True) == []


def test_the_halves_of_a_retried_unit_are_not_retried_again_FAIL_13() -> None:
    left, right = next_groups("v", next_groups("u", ["", ""], transient=True), transient=True)
    assert left != right
    assert next_groups("w", [left], transient=True) == []
