"""Redis being away is one typed error everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.common.errors import Unavailable
from services.scheduler.store.connection import OUTAGES


@contextmanager
def reaching_redis() -> Iterator[None]:
    """Turns redis-py's outages inside the block into Unavailable."""
    try:
        yield
    except OUTAGES as error:
        raise Unavailable(f"Redis is away: {error}") from error
