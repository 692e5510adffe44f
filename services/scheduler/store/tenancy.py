"""Keys and tenants in Redis. Records are few and small: they are read whole, and again when one changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from redis.asyncio import Redis

from services.common.errors import Unavailable
from services.common.keyring import KeyEntry
from services.scheduler.store import keys
from services.scheduler.store.connection import server_now_ms
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis
from services.scheduler.tenancy.records import TenantRecord

R = TypeVar("R", KeyEntry, TenantRecord)

log = logging.getLogger(__name__)

SWAPS = 10

# A record that cannot be read stands for these: its key admits nobody (not even where the key file
# knows it: the record may have said that it was revoked), its tenant has what all have.
UNREADABLE_KEY = KeyEntry("", "its record cannot be read", revoked_ms=1)
UNREADABLE_TENANT = TenantRecord()


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
            _records(key_rows, UNREADABLE_KEY),
            _records(tenant_rows, UNREADABLE_TENANT),
        )

    async def change_key(self, digest: str, change: Callable[[KeyEntry | None], KeyEntry]) -> KeyEntry:
        """Replaces the record by what `change` makes of it. Raises what `change` raises, Unavailable."""
        return cast("KeyEntry", await self._change(keys.KEYS, digest, UNREADABLE_KEY, change))

    async def change_tenant(
        self, tenant_id: str, change: Callable[[TenantRecord | None], TenantRecord]
    ) -> TenantRecord:
        return cast("TenantRecord", await self._change(keys.TENANTS, tenant_id, UNREADABLE_TENANT, change))

    async def _change(self, table: str, field: str, unreadable: Any, change: Callable[[Any], Any]) -> Any:
        for _ in range(SWAPS):
            with reaching_redis():
                held = await self._redis.hget(table, field) or b""
            made = change(_record(field, held, unreadable) if held else None)
            encoded = msgspec.json.encode(made)
            if await self._call("tenancy_swap", [table, keys.TENANCY_VERSION], field, held, encoded):
                return made
        raise Unavailable(f"{field} is being changed by others; try again")

    # ---- what a tenant uses ----------------------------------------------------------------

    async def open_sessions(self, tenant_id: str, *, until_ms: int | None = None) -> list[str]:
        """Those admitted by `until_ms` (unix), or all."""
        last = "+inf" if until_ms is None else until_ms
        with reaching_redis():
            found = await self._redis.zrange(keys.tenant_sessions(tenant_id), "-inf", last, byscore=True)
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
            now_ms = await server_now_ms(self._redis)
            pipe.zcount(keys.generations(pool, tenant_id), now_ms, "+inf")
            fields, samples, generations = await pipe.execute()
        found = {name.decode(): float(value) for name, value in fields.items()}
        return {**found, "samples": float(samples or 0) + generations, "now_ms": now_ms}


def _records(rows: Mapping[bytes, bytes], unreadable: R) -> dict[str, R]:
    names = {field.decode(errors="replace"): row for field, row in rows.items()}
    return {name: _record(name, row, unreadable) for name, row in names.items()}


def _record(name: str, row: bytes, unreadable: R) -> R:
    try:
        return msgspec.json.decode(row, type=type(unreadable))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        log.error("the %s of %s cannot be read: %s", type(unreadable).__name__, name[:64], error)
        return unreadable
