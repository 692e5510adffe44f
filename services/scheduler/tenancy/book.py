"""What this replica knows of keys and tenants: all of it, at most a second old.

Every lookup is a dictionary's. Each second one small read tells whether anything has changed; a
key nobody knows is looked for at once, so that a new one works immediately at every replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from services.common.clock import now_ms
from services.common.errors import InvalidInput, Unavailable
from services.common.keyring import KeyEntry, Keyring, key_id
from services.scheduler.store.tenancy import UNREADABLE_KEY, Stored, TenancyStore
from services.scheduler.tenancy.records import DEFAULT_WEIGHT, Quotas, TenantRecord, tenant_class

log = logging.getLogger(__name__)

REFRESH_SECONDS = 1.0
_NOBODY = TenantRecord()


class KnownKey(NamedTuple):
    digest: str
    entry: KeyEntry
    source: str  # mesh | file

    @property
    def key_id(self) -> str:
        return key_id(self.digest)


class TenantBook:
    def __init__(self, store: TenancyStore, file: Keyring | None, defaults: Quotas) -> None:
        self._store = store
        self._file = file
        self._defaults = defaults
        self._held = Stored(-1, {}, {})
        self._ids: dict[str, str] = {}
        self._looking = asyncio.Lock()
        self.weights: Mapping[str, float] = _Weights(self)

    async def run(self) -> None:
        """Until cancelled; while Redis is away what was read last stands."""
        while True:
            try:
                await self.refresh()
            except Unavailable as error:
                log.warning("keys and tenants are not read anew: %s", error)
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """One look at a time: an earlier, slower one must not bring back what has changed. Raises Unavailable."""
        async with self._looking:
            if await self._store.version() == self._held.version:
                return
            self._held = await self._store.load()
            self._ids = {key_id(digest): digest for digest in self._held.keys}

    # ---- keys ------------------------------------------------------------------------------

    async def find(self, digest: str = "", wanted_id: str = "") -> KnownKey | None:
        """By digest or by id, active or not. Raises Unavailable."""
        found = self._known(digest, wanted_id)
        if found is None:
            await self.refresh()
            found = self._known(digest, wanted_id)
        return found

    def tenant_of_digest(self, digest: str) -> str:
        """The tenant behind an active key's digest (an access token's), "" when there is none."""
        found = self._known(digest, "")
        return found.entry.tenant_id if found is not None and found.entry.state(now_ms()) == "active" else ""

    def all_keys(self) -> list[KnownKey]:
        """All of them, the mesh's own record before the file's."""
        mine = [KnownKey(digest, entry, "mesh") for digest, entry in self._held.keys.items()]
        theirs = self._file.entries() if self._file is not None else {}
        return mine + [KnownKey(d, e, "file") for d, e in theirs.items() if d not in self._held.keys]

    def _known(self, digest: str, wanted_id: str) -> KnownKey | None:
        digest = digest or self._ids.get(wanted_id, "")
        if digest in self._held.keys:
            return KnownKey(digest, self._held.keys[digest], "mesh")
        return self._in_file(digest, wanted_id)

    def _in_file(self, digest: str, wanted_id: str) -> KnownKey | None:
        if self._file is None:
            return None
        try:
            digest = digest or self._file.digest_of(wanted_id)
            entry = self._file.find(digest)
        except InvalidInput as error:  # the operator's file, not the caller's fault
            raise Unavailable(f"API keys cannot be checked now: {error.message}") from error
        return None if entry is None else KnownKey(digest, entry, "file")

    # ---- tenants ---------------------------------------------------------------------------

    def tenant(self, tenant_id: str) -> TenantRecord:
        return self._held.tenants.get(tenant_id, _NOBODY)

    def quotas(self, tenant_id: str) -> Quotas:
        """In force for this tenant."""
        record = self._held.tenants.get(tenant_id)
        return self._defaults if record is None else record.quotas.over(self._defaults)

    def class_of(self, tenant_id: str) -> str:
        return tenant_class(self.weights[tenant_id])

    def tenant_ids(self) -> list[str]:
        """Everyone with a key or a record."""
        found = {known.entry.tenant_id for known in self.all_keys()} | set(self._held.tenants)
        return sorted(found - {UNREADABLE_KEY.tenant_id})

    def weighted(self) -> Iterator[str]:
        yield from self._held.tenants


class _Weights(Mapping[str, float]):
    """Live: the share of turns as of the last look."""

    def __init__(self, book: TenantBook) -> None:
        self._book = book

    def __getitem__(self, tenant_id: str) -> float:
        return self._book.tenant(tenant_id).weight or DEFAULT_WEIGHT

    def __iter__(self) -> Iterator[str]:
        return self._book.weighted()

    def __len__(self) -> int:
        return sum(1 for _ in self._book.weighted())
