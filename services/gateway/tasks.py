"""Work that may end after those who waited for it have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that may fail although nobody waits for it any more."""
    task = asyncio.create_task(work)
    task.add_done_callback(_look_at)
    return task


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
