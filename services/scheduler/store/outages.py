"""Redis being away, or taking no writes for now, is one typed error everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ClusterDownError, OutOfMemoryError, ReadOnlyError, ResponseError

from services.common.errors import Unavailable
from services.scheduler.store.connection import OUTAGES

# The client library has classes for some of these and cuts their first word off; MISCONF is what a
# server answers that cannot write its file, such as on a full disk.
_CLASSES = (OutOfMemoryError, ReadOnlyError, ClusterDownError)
_WORDS = (
    *("LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "OOM ", "MISCONF ", "NOREPLICAS ", "BUSY "),
    *("TRYAGAIN ", "UNBLOCKED "),  # while a cluster moves a slot, while a primary becomes a replica
)


def refuses_writes(error: ResponseError) -> bool:
    """Whether the same command may succeed later."""
    return isinstance(error, _CLASSES) or any(word in str(error) for word in _WORDS)


@contextmanager
def reaching_redis() -> Iterator[None]:
    """Turns redis-py's outages and the server's passing refusals inside the block into Unavailable."""
    try:
        yield
    except OUTAGES as error:
        raise Unavailable(f"Redis is away: {error}") from error
    except ResponseError as error:
        if refuses_writes(error):
            raise Unavailable("Redis takes no writes") from error
        raise
