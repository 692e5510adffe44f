"""Releases of the scheduler side by side: which are alive, and whose functions may go."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from services.common.errors import InvalidInput
from services.scheduler.store import keys
from services.scheduler.store.connection import on_each_node, server_now_ms
from services.scheduler.store.functions import LAYOUT, Functions
from services.scheduler.store.outages import reaching_redis

ALIVE_MS = 15_000
KEEP_UNUSED_MS = 86_400_000
_OURS = "tinkermesh_*"


class LibraryShelf:
    """One replica's place among the releases. `layout` is a parameter for tests."""

    def __init__(self, redis: Redis, functions: Functions, replica: str, layout: int = LAYOUT) -> None:
        self._redis = redis
        self._functions = functions
        self._replica = replica
        self._layout = layout

    async def beat(self) -> None:
        """A sign of life; the first one also claims the layout of what lies in Redis.

        Raises InvalidInput when a newer release has written there, or when replicas of an older layout
        still work there; Unavailable.
        """
        places = [keys.LAYOUT, keys.REPLICAS, keys.LIBRARIES]
        name = self._functions.library.name
        said, met = await self._functions.call("library_beat", places, self._replica, self._layout, name, ALIVE_MS)
        if said == b"newer":
            raise InvalidInput(
                f"a newer release has written layout {int(met)} to this Redis and this one knows up to "
                f"{self._layout}: start that release or a later one"
            )
        if said == b"older":
            raise InvalidInput(
                f"replica {met.decode()} of an older layout still works on this Redis, and could not read what this "
                f"release (layout {self._layout}) writes: stop the old replicas first"
            )

    async def alone(self) -> bool:
        """Whether no other replica is alive."""
        with reaching_redis():
            entries = await cast("Any", self._redis).hgetall(keys.REPLICAS)
            now = await server_now_ms(self._redis)
        others = [row for name, row in entries.items() if name.decode() != self._replica]
        return all(now - msgspec.json.decode(row)["seen_ms"] > ALIVE_MS for row in others)

    async def leave(self) -> None:
        await self._functions.call("library_leave", [keys.REPLICAS], self._replica)

    async def drop_unused(self, keep_ms: int = KEEP_UNUSED_MS) -> list[str]:
        """Deletes the libraries no replica has used for a day; a replica that needs one loads it again."""
        loaded = await self._loaded()
        mine = self._functions.library.name
        others = sorted(loaded - {mine})
        unused = [n.decode() for n in await self._functions.call("library_unused", [keys.LIBRARIES], keep_ms, *others)]
        with reaching_redis():
            for name in unused:
                await on_each_node(self._redis, "FUNCTION DELETE", name)
        return unused

    async def unused(self, keep_ms: int = KEEP_UNUSED_MS) -> list[str]:
        """What `drop_unused` would delete now."""
        with reaching_redis():
            now = await server_now_ms(self._redis)
            used = dict(await cast("Any", self._redis).zrange(keys.LIBRARIES, 0, -1, withscores=True))
        others = sorted(await self._loaded() - {self._functions.library.name})
        return [name for name in others if now - used.get(name.encode(), now) > keep_ms]

    async def _loaded(self) -> set[str]:
        with reaching_redis():
            nodes = await on_each_node(self._redis, "FUNCTION LIST", "LIBRARYNAME", _OURS)
        return {_name(entry) for node in nodes for entry in node}


def _name(entry: Any) -> str:
    fields = entry if isinstance(entry, dict) else dict(zip(entry[::2], entry[1::2], strict=True))
    name: bytes = fields[b"library_name"]
    return name.decode()
