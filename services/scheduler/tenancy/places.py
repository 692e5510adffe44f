"""A tenant's places for open sessions."""

from __future__ import annotations

from services.common.errors import Busy
from services.scheduler.store.sessions import SessionStore
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.book import TenantBook


class SessionPlaces:
    def __init__(self, store: TenancyStore, sessions: SessionStore, book: TenantBook) -> None:
        self._store = store
        self._sessions = sessions
        self._book = book

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
        """Places whose session ended, or never came to be, without saying so; answers how many."""
        held = await self._store.open_sessions(tenant_id)
        rows = [await self._sessions.row(session_id) for session_id in held]
        gone = [name for name, row in zip(held, rows, strict=True) if row is None or row.state != "open"]
        await self._store.forget_sessions(tenant_id, gone)
        return len(gone)
