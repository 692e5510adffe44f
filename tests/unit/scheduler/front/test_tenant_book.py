"""What a replica knows of keys and tenants never goes back to what it read before."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from services.common.keyring import KeyEntry
from services.scheduler.store.tenancy import Stored
from services.scheduler.tenancy.book import TenantBook
from services.scheduler.tenancy.records import Quotas


class Store:
    """Version 1 has an active key, version 2 has revoked it; the first load is slow."""

    def __init__(self) -> None:
        self.now = 1
        self.slow = asyncio.Event()

    async def version(self) -> int:
        return self.now

    async def load(self) -> Stored:
        version = self.now
        if version == 1:
            await self.slow.wait()
        entry = KeyEntry("tenant", revoked_ms=0 if version == 1 else 1)
        return Stored(version, {"digest": entry}, {})


async def test_a_slow_look_does_not_bring_a_revoked_key_back_SEC_03() -> None:
    store = Store()
    book = TenantBook(cast("Any", store), None, Quotas())
    slow = asyncio.create_task(book.refresh())
    await asyncio.sleep(0)
    store.now = 2
    quick = asyncio.create_task(book.refresh())
    await asyncio.sleep(0)
    store.slow.set()
    await asyncio.gather(slow, quick)
    assert book.tenant_of_digest("digest") == ""
