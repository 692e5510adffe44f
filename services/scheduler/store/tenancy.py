"""Keys and tenants in Redis. Records are few and small: they are read whole, and again when one changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from services.common.errors import Unavailable
from services.common.keyring import KeyEntry
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.tenancy.records import TenantRecord

SWAPS = 10


class Stored(NamedTuple):
    """All records as of `version`."""

    version: int
    keys: dict[str, KeyEntry]
    tenants: dict[str, TenantRecord]


class TenancyStore:
    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call

    async def version(self) -> int:
        with reaching_redis():
            return int(await self._redis.get(keys.TENANCY_VERSION) or 0)

    async def load(self) -> Stored:
        """The version is read first: what changes meanwhile is seen at the next look."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(keys.TENANCY_VERSION)
            pipe.hgetall(keys.KEYS)
            pipe.hgetall(keys.TENANTS)
            version, key_rows, tenant_rows = await pipe.execute()
        return Stored(
            int(version or 0),
            {name.decode(): msgspec.json.decode(row, type=KeyEntry) for name, row in key_rows.items()},
            {name.decode(): msgspec.json.decode(row, type=TenantRecord) for name, row in tenant_rows.items()},
        )

    async def change_key(self, digest: str, change: Callable[[KeyEntry | None], KeyEntry]) -> KeyEntry:
        """Replaces the record by what `change` makes of it. Raises what `change` raises, Unavailable."""
        return cast("KeyEntry", await self._change(keys.KEYS, digest, KeyEntry, change))

    async def change_tenant(
        self, tenant_id: str, change: Callable[[TenantRecord | None], TenantRecord]
    ) -> TenantRecord:
        return cast("TenantRecord", await self._change(keys.TENANTS, tenant_id, TenantRecord, change))

    async def _change(self, table: str, field: str, kind: type, change: Callable[[Any], Any]) -> Any:
        for _ in range(SWAPS):
            with reaching_redis():
                held = await self._redis.hget(table, field) or b""
            made = change(msgspec.json.decode(held, type=kind) if held else None)
            encoded = msgspec.json.encode(made)
            if await self._call("tenancy_swap", [table, keys.TENANCY_VERSION], field, held, encoded):
                return made
        raise Unavailable(f"{field} is being changed by others; try again")

    # ---- what a tenant uses ----------------------------------------------------------------

    async def open_sessions(self, tenant_id: str) -> list[str]:
        with reaching_redis():
            found = await self._redis.zrange(keys.tenant_sessions(tenant_id), 0, -1)
        return [name.decode() for name in found]

    async def forget_sessions(self, tenant_id: str, session_ids: list[str]) -> None:
        if session_ids:
            with reaching_redis():
                await self._redis.zrem(keys.tenant_sessions(tenant_id), *session_ids)

    async def usage(self, pool: str, tenant_id: str) -> dict[str, float]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hgetall(keys.usage(pool, tenant_id))
            pipe.hget(keys.sample_counts(pool), tenant_id)
            pipe.time()
            fields, samples, (seconds, micros) = await pipe.execute()
        found = {name.decode(): float(value) for name, value in fields.items()}
        return {**found, "samples": float(samples or 0), "now_ms": int(seconds) * 1000 + int(micros) // 1000}
