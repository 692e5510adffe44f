"""Ending background tasks for good."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_SECONDS = 0.5


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> list[Exception]:
    """Cancels until every task has ended; answers the errors they ended with.

    One cancel is not enough: a library's timeout that fires in the same moment swallows it.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    errors = (task.exception() for task in tasks if not task.cancelled())
    return [error for error in errors if isinstance(error, Exception)]
