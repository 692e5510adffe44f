"""The term lease of a pool."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from services.scheduler.store import keys
from services.scheduler.store.functions import Functions


@dataclass(frozen=True, slots=True)
class Held:
    """`term` is 0 when another replica holds the lease, for `wait_ms` at most unless it renews."""

    term: int
    holder: str = ""
    wait_ms: int = 0


class LeaseStore:
    """A restarted process of the same name must not take its former life's lease: a term has one driver."""

    def __init__(self, functions: Functions) -> None:
        self._call = functions.call
        self._life = secrets.token_hex(8)

    async def acquire(self, pool: str, replica: str, ttl_ms: int) -> Held:
        answer = await self._call("lease_acquire", [keys.pool_prefix(pool)], replica, ttl_ms, self._life)
        if len(answer) == 1:
            return Held(int(answer[0]))
        return Held(0, answer[1].decode(), int(answer[2]))

    async def renew(self, pool: str, term: int, ttl_ms: int) -> bool:
        return bool(await self._call("lease_renew", [keys.pool_prefix(pool)], term, self._life, ttl_ms))

    async def release(self, pool: str, term: int) -> None:
        await self._call("lease_release", [keys.pool_prefix(pool)], term, self._life)
