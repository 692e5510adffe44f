"""What is past its time, as the sweepers find it, only read: bounded looks at the indexes they go by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis

TENANTS_LOOKED_AT = 1_000


class Due(NamedTuple):
    """`total` of an index up to a time, and the first of them with theirs (unix ms)."""

    total: int
    first: list[tuple[str, int]]


class Checkpoints(NamedTuple):
    """`first`: (checkpoint, end in unix ms or 0 when it was deleted, bytes)."""

    total: int
    at_least: bool
    first: list[tuple[str, int, int]]


class GarbageReader:
    """Raises Unavailable."""

    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def due(self, index: str, until_ms: int, limit: int) -> Due:
        """Of one of the zsets whose scores are times."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zcount(index, "-inf", until_ms)
            pipe.zrange(index, "-inf", until_ms, byscore=True, offset=0, num=limit, withscores=True)
            total, found = await pipe.execute()
        return Due(int(total), [(name.decode(errors="replace"), int(score)) for name, score in found])

    async def listed(self, index: str, limit: int) -> Due:
        """Of one of the lists of what may go at once."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.llen(index)
            pipe.lrange(index, 0, limit - 1)
            total, found = await pipe.execute()
        return Due(int(total), [(name.decode(), 0) for name in found])

    async def fields(self, names: Sequence[str], *fields: str) -> list[list[str]]:
        """Of hashes, in their order; "" = it has none."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.hmget(name, fields)
            rows = await pipe.execute() if names else []
        return [[(value or b"").decode() for value in row] for row in rows]

    async def sizes(self, names: Sequence[str]) -> list[int]:
        """Bytes of strings."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.strlen(name)
            return [int(size) for size in (await pipe.execute() if names else [])]

    async def checkpoints(self, until_ms: int, limit: int) -> Checkpoints:
        """Expired and deleted ones whose files are still there, over tenants with something due by then."""
        tenants = await self.due(keys.CATALOG_DUE, until_ms, TENANTS_LOOKED_AT)
        total, first = 0, list[tuple[str, int, int]]()
        for tenant, _ in tenants.first:
            expiring = await self.due(keys.catalog_expiring(tenant), until_ms, limit)
            doomed = await self.members(keys.catalog_doomed(tenant), limit)
            total += expiring.total + doomed.total
            found = [*expiring.first, *((name.rpartition(" ")[0], 0) for name, _ in doomed.first)][: limit - len(first)]
            sizes = await self.fields([keys.catalog_checkpoint(tenant, name) for name, _ in found], "size")
            first.extend((name, end, int(size or 0)) for (name, end), (size,) in zip(found, sizes, strict=True))
        return Checkpoints(total, tenants.total > len(tenants.first), first)

    async def members(self, index: str, limit: int) -> Due:
        """Of one of the sets of what may go at once."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.scard(index)
            pipe.srandmember(index, limit)
            total, found = await pipe.execute()
        return Due(int(total), sorted((name.decode(), 0) for name in found))
