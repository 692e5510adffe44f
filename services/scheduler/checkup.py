"""When what lies in Redis is checked: once for each life of the server, and by whoever starts alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from typing import Any, cast

import msgspec

from services.common.errors import TinkermeshError
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis, on_each_node
from services.scheduler.store.consistency import Alone, ConsistencyCheck, Finding
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
SHOWN = 5


class Checkup:
    """Only one replica checks at a time; the report of the last check lies under `keys.CHECKUP`.

    The lock runs out by itself. A check that is slower than that may be overtaken: it then leaves the lock and
    the report to the other, and may go on looking, since every repair looks again before it writes.
    """

    def __init__(self, redis: Redis, functions: Functions, check: ConsistencyCheck, replica: str) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
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
            token = f"{self._replica} {secrets.token_hex(8)}"
            if not await self._redis.set(keys.CHECKUP_LOCK, token, nx=True, px=int(CHECK_SECONDS * 1000)):
                return []
            try:
                return await self._bounded(life, alone, token)
            except BaseException:
                with contextlib.suppress(TinkermeshError):  # it runs out by itself; the cause goes on
                    await self._call("check_given_up", [keys.CHECKUP_LOCK], token)
                raise

    async def _life(self) -> str:
        return " ".join([str(info["run_id"]) for info in await on_each_node(self._redis, "INFO", "server")])

    async def _bounded(self, life: str, alone: Alone, token: str) -> list[Finding]:
        found: list[Finding] = []
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                for pool in sorted(await self._redis.smembers(keys.POOLS)):
                    found += await self._check.pool(pool.decode(), alone=alone)
                found += await self._check.sessions()
        except TimeoutError:
            log.warning("the consistency check was cut off after %.0f s: the rest was not looked at", CHECK_SECONDS)
        report = {"replica": self._replica, "findings": Counter(one.kind for one in found)}
        _tell(found)
        if not await self._call(
            "check_over", [keys.CHECKUP_LOCK, keys.CHECKUP], token, life, msgspec.json.encode(report)
        ):
            log.warning("the consistency check took so long that another replica checks now; the report is left to it")
        return found


def _tell(found: list[Finding]) -> None:
    for kind in sorted({one.kind for one in found}):
        subjects = [one.subject for one in found if one.kind == kind]
        log.error("consistency check: %d x %s: %s", len(subjects), kind, ", ".join(subjects[:SHOWN]))
    if not found:
        log.info("consistency check: nothing to repair")
