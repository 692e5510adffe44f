"""Keeps this replica honest about its Redis: what it must be, which releases work on it, what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from services.common.errors import InvalidInput, Unavailable
from services.scheduler.checkup import Checkup
from services.scheduler.settings import Settings
from services.scheduler.startup_checks import check_redis
from services.scheduler.store.connection import Redis
from services.scheduler.store.consistency import ConsistencyCheck
from services.scheduler.store.durability import Confirmation
from services.scheduler.store.functions import Functions
from services.scheduler.store.libraries import LibraryShelf
from services.scheduler.store.notices import Notices
from services.scheduler.store.payloads import FileBlobs
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

BEAT_SECONDS = 4.0
TIDY_SECONDS = 3_600.0
RETRY_SECONDS = 1.0


class RedisKeeper:
    """`prepare` before anything else, then `run`; `leave` at the end."""

    def __init__(self, redis: Redis, functions: Functions, settings: Settings, notices: Notices) -> None:
        self._redis = redis
        self._functions = functions
        self._settings = settings
        self._shelf = LibraryShelf(redis, functions, settings.replica)
        blobs = FileBlobs(Path(settings.store_root) / "payloads")
        retention_ms = int(settings.retention_seconds * 1000)
        check = ConsistencyCheck(redis, functions, blobs, retention_ms=retention_ms)
        self._checkup = Checkup(redis, functions, check, settings.replica)
        self._reconnected = asyncio.Event()
        self._tidied = time.monotonic()
        notices.on_reconnect(self._reconnected.set)

    async def prepare(self) -> None:
        """Raises InvalidInput when this Redis is not fit, or another release's; Unavailable."""
        self._functions.confirmation = await self._check()
        await self._functions.load()
        await self._shelf.beat()
        await self._checkup.run(self._shelf.alone)

    async def _check(self) -> Confirmation | None:
        return await check_redis(self._redis, self._settings.durability, self._settings.redis_replicas)

    async def run(self) -> None:
        """Until cancelled. Raises InvalidInput when a newer release has taken this Redis over."""
        self._reconnected.clear()
        while True:
            await wait_at_most(self._reconnected, BEAT_SECONDS)
            try:
                await self._look()
            except Unavailable as error:
                log.warning("Redis is not looked after now: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> None:
        if self._reconnected.is_set():
            self._reconnected.clear()  # before the look: what reconnects meanwhile may be yet another server
            try:
                await self._again()
            except Unavailable:
                self._reconnected.set()
                raise
        if not self._functions.refusal:
            await self._shelf.beat()
            await self._tidy()

    async def _again(self) -> None:
        """What answers now may be another server than before: after a failover, or a restart with other settings.

        One that is not fit gets no writes: refused work can be sent again, lost work cannot.
        """
        try:
            self._functions.confirmation = await self._check()
        except InvalidInput as error:
            self._functions.refusal = f"this mesh takes no work now: {error.message}"
            log.error("no more writes until Redis is fit: %s", error.message)
            raise Unavailable(error.message) from error
        self._functions.refusal = ""
        await self._functions.load()
        await self._checkup.run(_not_alone)

    async def _tidy(self) -> None:
        if time.monotonic() - self._tidied < TIDY_SECONDS:
            return
        self._tidied = time.monotonic()
        for name in await self._shelf.drop_unused():
            log.info("deleted function library %s: no replica has used it for a day", name)

    async def leave(self) -> None:
        with contextlib.suppress(Unavailable):
            await self._shelf.leave()


async def _not_alone() -> bool:
    """This replica itself is at work."""
    return False
