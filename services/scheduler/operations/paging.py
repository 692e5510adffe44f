"""Bounded pages of names that lie in pools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.common.errors import InvalidInput
from services.common.ids import is_pool_name

LARGEST_LIMIT = 1_000

Names = Callable[[str], Awaitable[list[str]]]


def bounded(asked: int, default: int = LARGEST_LIMIT) -> int:
    return min(asked or default, LARGEST_LIMIT)


def no_cursor(cursor: str) -> InvalidInput:
    return InvalidInput(f"cursor: {cursor[:80]!r} is none; pass the next_cursor of an answer back as it came")


async def page_of(pools: Sequence[str], names: Names, cursor: str, limit: int) -> tuple[list[tuple[str, str]], str]:
    """((pool, name) behind `cursor` in their order, the next cursor or ""). `names` answers sorted ones of a pool.

    Raises InvalidInput.
    """
    last = _place(cursor)
    found: list[tuple[str, str]] = []
    for pool in sorted(pools):
        if pool >= last[0]:
            found.extend((pool, name) for name in await names(pool) if (pool, name) > last)
        if len(found) > limit:
            break
    page = found[:limit]
    return page, "/".join(page[-1]) if len(found) > limit else ""


def _place(cursor: str) -> tuple[str, str]:
    pool, _, name = cursor.partition("/")
    if cursor and not (is_pool_name(pool) and 0 < len(name) <= 200):
        raise no_cursor(cursor)
    return pool, name


def arrivals_of(cursor: str) -> dict[str, int]:
    """By pool, the arrival number of the last request that was shown. Raises InvalidInput."""
    found = {}
    for part in cursor.split(",") if cursor else ():
        pool, _, arrival = part.partition("=")
        if not (is_pool_name(pool) and arrival.isascii() and arrival.isdigit() and len(arrival) < 17):
            raise no_cursor(cursor)
        found[pool] = int(arrival)
    return found


def arrivals_cursor(arrivals: dict[str, int]) -> str:
    return ",".join(f"{pool}={arrival}" for pool, arrival in sorted(arrivals.items()))
