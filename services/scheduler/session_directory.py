"""Which pool a session's model lives in: write-once, so it is remembered for good."""

from __future__ import annotations

from collections import OrderedDict

from services.common.errors import Gone, UnknownId
from services.scheduler.store.sessions import SessionStore

REMEMBERED = 10_000
COPY = "-copy"
"""Stands where a pool's name would, which it cannot be: the number names a copy, which nobody trains."""


class SessionDirectory:
    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._known: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def claim_model(self, tenant_id: str, session_id: str, model_seq_id: int, pool: str) -> str:
        """The pool that holds for this key; the first claim wins.

        Raises UnknownId when the session is gone or has ended, Forbidden when it is another tenant's.
        """
        try:
            held = await self._store.claim(session_id, tenant_id, "models", model_seq_id, pool)
        except Gone as error:
            raise UnknownId(f"session_id {session_id[:64]!r}: {error.message}") from error
        self._remember(session_id, model_seq_id, held)
        return held

    async def check_owner(self, tenant_id: str, session_id: str) -> None:
        """Raises UnknownId, Forbidden."""
        await self._store.owned(session_id, tenant_id)

    async def pool_of_model(self, session_id: str, model_seq_id: int) -> str | None:
        known = self._known.get((session_id, model_seq_id))
        if known is not None:
            return known
        pool = await self._store.child(session_id, "models", model_seq_id)
        if pool is not None:
            self._remember(session_id, model_seq_id, pool)
        return pool

    def _remember(self, session_id: str, model_seq_id: int, pool: str) -> None:
        self._known[(session_id, model_seq_id)] = pool
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
