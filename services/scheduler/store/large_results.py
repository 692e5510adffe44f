"""Results that settled in Redis and are to lie in the shared store (functions/results.lua)."""

from __future__ import annotations

from typing import Any, cast

from redis.asyncio import Redis

from services.common.errors import UnknownId
from services.common.ids import RequestId, parse_request_id
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis


class LargeResults:
    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call

    async def waiting(self, pool: str, limit: int) -> list[str]:
        """Request keys, the earliest first."""
        with reaching_redis():
            found = await self._redis.lrange(keys.large_results(pool), 0, limit - 1)
        return [key.decode() for key in found]

    async def done(self, pool: str, key: str) -> None:
        with reaching_redis():
            await self._redis.lrem(keys.large_results(pool), 1, key)

    async def request(self, pool: str, key: str) -> RequestId | None:
        """None when the row is gone."""
        with reaching_redis():
            held = await self._redis.hget(keys.req(pool, key), "request_id")
        try:
            return parse_request_id((held or b"").decode())
        except UnknownId:
            return None

    async def moved(self, request: RequestId, name: str, size: int) -> bool:
        """The file `name` holds the whole result now; False = nobody will ask for it."""
        prefix = [keys.pool_prefix(request.pool)]
        return bool(await self._call("result_moved", prefix, request.key, str(request), name, size))
