"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Whether `event` was set within `seconds`. It stays set: whoever waits in a loop clears it."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
