"""Keys are made, rotated and revoked here. A secret is answered once and never kept."""

from __future__ import annotations

import logging
import uuid

from services.common.audit import AUDIT
from services.common.clock import now_ms
from services.common.errors import InvalidInput, UnknownId
from services.common.keyring import KeyEntry, digest, key_id, new_secret
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.book import KnownKey, TenantBook

log = logging.getLogger(__name__)

LONGEST_SECONDS = 100 * 365 * 86_400
LONGEST_LABEL = 200


class KeyDesk:
    def __init__(self, store: TenancyStore, book: TenantBook, pepper: bytes) -> None:
        self._store = store
        self._book = book
        self._pepper = pepper

    async def create(self, tenant_id: str, label: str, expires_seconds: int) -> tuple[str, KnownKey]:
        """(secret, key). Raises InvalidInput, UnknownId for a tenant nobody knows."""
        await self._book.refresh()
        if tenant_id and tenant_id not in self._book.tenant_ids():
            raise UnknownId(f"tenant_id {tenant_id[:64]!r} is not known; leave it out to make a new tenant")
        return await self._new(tenant_id or str(uuid.uuid4()), label, expires_seconds, "created")

    async def rotate(self, wanted_id: str, grace_seconds: int, expires_seconds: int) -> tuple[str, KnownKey]:
        """A new key of the same tenant and label; the old one ends after the grace period."""
        old = await self._active(wanted_id)
        check_seconds(grace_seconds, "grace_seconds")
        made = await self._new(old.entry.tenant_id, old.entry.label, expires_seconds, "created by rotation")
        if grace_seconds:
            await self._end(old, expires_ms=now_ms() + 1000 * grace_seconds)
        else:
            await self._end(old, revoked_ms=now_ms())
        _note(old, f"rotated, ends in {grace_seconds} s")
        return made

    async def revoke(self, wanted_id: str) -> KnownKey:
        """Idempotent. Raises UnknownId."""
        found = await self._found(wanted_id)
        if found.entry.revoked_ms:
            return found
        ended = await self._end(found, revoked_ms=now_ms())
        _note(found, "revoked")
        return ended

    async def _new(self, tenant_id: str, label: str, expires_seconds: int, said: str) -> tuple[str, KnownKey]:
        check_seconds(expires_seconds, "expires_seconds")
        if len(label) > LONGEST_LABEL:
            raise InvalidInput(f"label: {len(label)} characters, the limit is {LONGEST_LABEL}")
        secret, now = new_secret(), now_ms()
        entry = KeyEntry(tenant_id, label, now, now + 1000 * expires_seconds if expires_seconds else 0)
        made = KnownKey(digest(self._pepper, secret), entry, "mesh")
        await self._store.change_key(made.digest, lambda _nothing: entry)
        await self._book.refresh()
        _note(made, said)
        return secret, made

    async def _end(self, known: KnownKey, *, expires_ms: int = 0, revoked_ms: int = 0) -> KnownKey:
        """The mesh's own record, made from the file's where there is none, says when the key ends."""

        def ended(held: KeyEntry | None) -> KeyEntry:
            entry = held or known.entry
            return entry.revoked(revoked_ms) if revoked_ms else entry.ending(expires_ms)

        entry = await self._store.change_key(known.digest, ended)
        await self._book.refresh()
        return KnownKey(known.digest, entry, "mesh")

    async def _found(self, wanted_id: str) -> KnownKey:
        found = await self._book.find(wanted_id=wanted_id)
        if found is None:
            raise UnknownId(f"key_id {wanted_id[:64]!r} is not known; ListKeys names them all")
        return found

    async def _active(self, wanted_id: str) -> KnownKey:
        found = await self._found(wanted_id)
        if (state := found.entry.state(now_ms())) != "active":
            raise InvalidInput(f"key_id {wanted_id} is {state}; create a new key for tenant {found.entry.tenant_id}")
        return found


def check_seconds(seconds: int, field: str) -> None:
    if seconds > LONGEST_SECONDS:
        raise InvalidInput(f"{field}: {seconds} s is more than the longest, {LONGEST_SECONDS} s")


def _note(known: KnownKey, said: str) -> None:
    fields = {"tenant": known.entry.tenant_id, "key": key_id(known.digest), "label": known.entry.label}
    AUDIT.info("key %s", said, extra={"fields": {"decision": said, "op": "key", **fields}})
