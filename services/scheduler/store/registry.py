"""Trainers and samplers of a pool, and the pool's facts, in Redis."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from google.protobuf import json_format
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.cells import FIRST_CELL
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

Kind = Literal["trainers", "samplers"]
_WORK: dict[Kind, str] = {"trainers": "trainer", "samplers": "sample"}


@dataclass(frozen=True, slots=True)
class Member:
    """One trainer or sampler as it last registered; ages by Redis TIME."""

    member_id: str
    incarnation: str
    since_ms: int
    seen_ms_ago: int
    draining: bool
    registration: str  # JSON of the register request
    cell: str = FIRST_CELL  # of a trainer

    def trainer(self) -> pb.RegisterTrainerRequest:
        return json_format.Parse(self.registration, pb.RegisterTrainerRequest(), ignore_unknown_fields=True)

    def sampler(self) -> pb.RegisterSamplerRequest:
        return json_format.Parse(self.registration, pb.RegisterSamplerRequest(), ignore_unknown_fields=True)


class RegistryStore:
    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call
        self._listed: set[str] = set()

    async def renew(
        self, pool: str, kind: Kind, member_id: str, incarnation: str, registration: str, cell: str = ""
    ) -> bool:
        """True when this incarnation is new. The pool is listed by every replica that meets it: one may die between."""
        prefix = keys.pool_prefix(pool)
        arguments = (kind, member_id, incarnation, registration, _WORK[kind], cell)
        fresh = await self._call("registry_renew", [prefix], *arguments)
        if fresh or pool not in self._listed:
            with reaching_redis():
                await self._redis.sadd(keys.POOLS, pool)
            self._listed.add(pool)
        return bool(fresh)

    async def members(self, pool: str, kind: Kind) -> list[Member]:
        now, flat, draining = await self._call("registry_list", [keys.pool_prefix(pool)], kind)
        pairs = cast("Sequence[bytes]", flat)
        drained = {name.decode() for name in draining}
        return [
            _member(name.decode(), json.loads(entry), int(now), drained)
            for name, entry in zip(pairs[::2], pairs[1::2], strict=True)
        ]

    async def facts(self, pool: str) -> types.PoolFacts | None:
        with reaching_redis():
            data = await self._redis.get(keys.facts(pool))
        return None if data is None else types.PoolFacts.FromString(data)

    async def replace_facts(self, pool: str, current: types.PoolFacts | None, wanted: types.PoolFacts) -> bool:
        """False when the facts changed since `current` was read."""
        before = b"" if current is None else _stable(current)
        return bool(await self._call("registry_set_facts", [keys.pool_prefix(pool)], before, _stable(wanted)))

    async def drain(self, pool: str, member_id: str, *, on: bool, kind: Kind = "trainers") -> None:
        """Raises UnknownId."""
        await self._call("registry_drain", [keys.pool_prefix(pool)], member_id, int(on), kind)

    async def pools(self) -> list[str]:
        with reaching_redis():
            names = await self._redis.smembers(keys.POOLS)
        return sorted(name.decode() for name in names)


def _stable(facts: types.PoolFacts) -> bytes:
    return facts.SerializeToString(deterministic=True)


def _member(member_id: str, entry: dict[str, Any], now_ms: int, draining: set[str]) -> Member:
    return Member(
        member_id=member_id,
        incarnation=entry["incarnation"],
        since_ms=int(entry["since_ms"]),
        seen_ms_ago=now_ms - int(entry["seen_ms"]),
        draining=member_id in draining,
        registration=entry["registration"],
        cell=entry.get("cell") or FIRST_CELL,
    )
