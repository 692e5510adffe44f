"""Facts of stored training commands that never change once admitted, cached by request key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.core.packing import datum_cost
from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.payloads import Upload

_FIELDS = ("request_id", "tenant", "parent", "command", "upload", "segments", "traceparent", "admitted_ms", "seq")


@dataclass(frozen=True, slots=True)
class StoredCommand:
    """`costs`: tokens per datum (core.packing.datum_cost). `payload`: the whole of a small one, else empty."""

    key: str
    request_id: str
    tenant: str
    model_id: str
    command: types.Command
    upload: Upload
    traceparent: str
    admitted_ms: int
    seq: int = 0
    payload: bytes = b""
    costs: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        table = self.command.batch.table
        costs = tuple(map(datum_cost, table.lengths, table.widths))
        object.__setattr__(self, "costs", costs)  # once: a view asks for it before every unit


class CommandCache:
    """At most `limit` commands, least recently used out first."""

    def __init__(self, redis: Redis, limit: int = 4096) -> None:
        self._redis = cast("Any", redis)
        self._limit = limit
        self._found: OrderedDict[tuple[str, str], StoredCommand] = OrderedDict()

    async def get(self, pool: str, wanted: Iterable[str]) -> dict[str, StoredCommand]:
        """The commands under these keys, as far as their rows exist.

        What is found is held here: others may push it out of the cache while the rest is read.
        """
        wanted = list(wanted)
        held = {key: self._found[pool, key] for key in wanted if (pool, key) in self._found}
        missing = [key for key in wanted if key not in held]
        if missing:
            held |= await self._fetch(pool, missing)
        found = {key: held[key] for key in wanted if key in held}
        for key, stored in found.items():
            self._found[pool, key] = stored
            self._found.move_to_end((pool, key))
        self._trim()
        return found

    async def _fetch(self, pool: str, missing: Sequence[str]) -> dict[str, StoredCommand]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for key in missing:
                pipe.hmget(keys.req(pool, key), _FIELDS)
            rows = await pipe.execute()
        pairs = zip(missing, rows, strict=True)
        return {key: _stored(key, row) for key, row in pairs if row[0] is not None and row[3] is not None}

    def remember(self, pool: str, stored: StoredCommand) -> None:
        """A command this replica has just admitted itself."""
        self._found[pool, stored.key] = stored
        self._trim()

    def _trim(self) -> None:
        while len(self._found) > self._limit:
            self._found.popitem(last=False)


def _stored(key: str, row: Sequence[bytes | None]) -> StoredCommand:
    text = [b"" if value is None else value for value in row]
    return StoredCommand(
        key=key,
        request_id=text[0].decode(),
        tenant=text[1].decode(),
        model_id=text[2].decode(),
        command=types.Command.FromString(text[3]),
        upload=Upload(text[4].decode(), int(text[5] or 0)),
        traceparent=text[6].decode(),
        admitted_ms=int(text[7] or 0),
        seq=int(text[8] or 0),
    )
