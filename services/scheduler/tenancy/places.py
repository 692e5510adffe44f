"""A tenant's places for open sessions."""

from __future__ import annotations

import asyncio
import math

from services.common.clock import now_ms
from services.common.errors import Busy
from services.scheduler.store.sessions import SessionStore
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.book import TenantBook

LOOK_SECONDS = 10.0
SETTLED_MS = 60_000
"""By then whoever took a place has made its session, or died."""


class SessionPlaces:
    def __init__(self, store: TenancyStore, sessions: SessionStore, book: TenantBook) -> None:
        self._store = store
        self._sessions = sessions
        self._book = book
        self._looked_at: dict[str, float] = {}  # by tenant, the event loop's time

    async def take(self, tenant_id: str, key_hash: str, proposed: str, keep_ms: int) -> str:
        """The session id of this idempotency key ("" = none); raises Busy when all places are taken."""
        limit = self._book.quotas(tenant_id).sessions
        try:
            return await self._sessions.admit(tenant_id, key_hash, proposed, keep_ms, limit)
        except Busy:
            if not await self._free_abandoned(tenant_id):
                raise
        return await self._sessions.admit(tenant_id, key_hash, proposed, keep_ms, limit)

    async def free(self, session_id: str) -> None:
        """The session has ended."""
        row = await self._sessions.row(session_id)
        if row is not None:
            await self._store.forget_sessions(row.tenant_id, [session_id])

    async def _free_abandoned(self, tenant_id: str) -> int:
        """Places whose session ended, or never came to be, without saying so; answers how many.

        Looked for now and then only: a client at its quota asks again and again. A place that was taken a
        moment ago may not have its session yet.
        """
        now = asyncio.get_running_loop().time()
        if now - self._looked_at.get(tenant_id, -math.inf) < LOOK_SECONDS:
            return 0
        self._looked_at[tenant_id] = now
        held = await self._store.open_sessions(tenant_id, until_ms=now_ms() - SETTLED_MS)
        gone = [name for name, state in zip(held, await self._sessions.states(held), strict=True) if state != "open"]
        await self._store.forget_sessions(tenant_id, gone)
        return len(gone)
