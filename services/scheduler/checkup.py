"""When what lies in Redis is checked: once for each life of the server, and by whoever starts alone."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, cast

import msgspec

from services.scheduler.store import keys
from services.scheduler.store.connection import Redis, on_each_node
from services.scheduler.store.consistency import Alone, ConsistencyCheck, Finding
from services.scheduler.store.outages import reaching_redis

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
SHOWN = 5


class Checkup:
    """Only one replica checks at a time; the report of the last check lies under `keys.CHECKUP`."""

    def __init__(self, redis: Redis, check: ConsistencyCheck, replica: str) -> None:
        self._redis = cast("Any", redis)
        self._check = check
        self._replica = replica

    async def run(self, alone: Alone) -> list[Finding]:
        """What was found and, but for what is only reported, repaired; [] when there was no reason to look.

        Raises Unavailable.
        """
        with reaching_redis():
            life = await self._life()
            checked = await self._redis.hget(keys.CHECKUP, "life")
            if checked == life.encode() and not await alone():
                return []
            if not await self._redis.set(keys.CHECKUP_LOCK, self._replica, nx=True, px=int(CHECK_SECONDS * 1000)):
                return []
            try:
                return await self._bounded(life, alone)
            finally:
                await self._redis.delete(keys.CHECKUP_LOCK)

    async def _life(self) -> str:
        return " ".join([str(info["run_id"]) for info in await on_each_node(self._redis, "INFO", "server")])

    async def _bounded(self, life: str, alone: Alone) -> list[Finding]:
        found: list[Finding] = []
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                for pool in sorted(await self._redis.smembers(keys.POOLS)):
                    found += await self._check.pool(pool.decode(), alone=alone)
                found += await self._check.sessions()
        except TimeoutError:
            log.warning("the consistency check was cut off after %.0f s: the rest was not looked at", CHECK_SECONDS)
        report = {"replica": self._replica, "findings": Counter(one.kind for one in found)}
        await self._redis.hset(keys.CHECKUP, mapping={"life": life, "report": msgspec.json.encode(report)})
        _tell(found)
        return found


def _tell(found: list[Finding]) -> None:
    for kind in sorted({one.kind for one in found}):
        subjects = [one.subject for one in found if one.kind == kind]
        log.error("consistency check: %d x %s: %s", len(subjects), kind, ", ".join(subjects[:SHOWN]))
    if not found:
        log.info("consistency check: nothing to repair")
