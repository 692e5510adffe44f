"""Query parameters of lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from services.common.errors import InvalidInput

LARGEST_PAGE = 1_000
LARGEST_OFFSET = 2**53
SCOPES = ("owned", "accessible")


class Window(NamedTuple):
    offset: int
    limit: int


def window(query: Mapping[str, str], default_limit: int, largest_limit: int = LARGEST_PAGE) -> Window:
    """Raises InvalidInput naming the parameter and its bounds."""
    limit = _whole(query, "limit", default_limit, 1, largest_limit)
    return Window(_whole(query, "offset", 0, 0, LARGEST_OFFSET), limit)


def check_scope(query: Mapping[str, str]) -> None:
    """A tenant is all there is to have access to, so both scopes mean the same. Raises InvalidInput."""
    scope = query.get("access_scope", "owned")
    if scope not in SCOPES:
        raise InvalidInput(f"access_scope: {scope[:40]!r} is not one of {', '.join(SCOPES)}")


def _whole(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 17 and low <= int(text) <= high):
        raise InvalidInput(f"{name}: {text[:40]!r} is not a whole number within {low} and {high}")
    return int(text)
