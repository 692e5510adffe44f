"""What pools, models and samplers are: asked once, then remembered, since none of it changes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Unavailable
from services.gateway.upstream.scheduler import SchedulerClient
from services.gateway.validation.sampling import Sampler

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_POOLS_SECONDS = 5.0


class Recent(Generic[K, V]):
    """The `size` most recently used entries."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)


class FactsCache:
    """Keys include the tenant: an entry exists only after the scheduler checked ownership."""

    def __init__(self, scheduler: SchedulerClient, size: int = 16_384) -> None:
        self._scheduler = scheduler
        self._models: Recent[tuple[str, str], types.PoolFacts] = Recent(size)
        self._samplers: Recent[tuple[str, str], Sampler] = Recent(size)
        self._pools: list[pb.PoolSummary] = []
        self._pools_until = 0.0

    async def of_model(self, tenant: str, model_id: str) -> types.PoolFacts:
        """Raises UnknownId, Forbidden, Unavailable."""
        known = self._models.get((tenant, model_id))
        if known is None:
            known = (await self._scheduler.get_model(tenant, model_id)).facts
            self._models.put((tenant, model_id), known)
        return known

    async def of_sampler(self, tenant: str, sampling_session_id: str) -> Sampler:
        """Raises UnknownId, Forbidden, Unavailable."""
        known = self._samplers.get((tenant, sampling_session_id))
        if known is None:
            reply = await self._scheduler.get_sampler(tenant, sampling_session_id)
            known = Sampler(reply.base_model, reply.model_path, reply.facts)
            self._samplers.put((tenant, sampling_session_id), known)
        return known

    async def pools(self, *, fresh: bool = False) -> list[pb.PoolSummary]:
        """All pools, at most a few seconds old."""
        if fresh or time.monotonic() >= self._pools_until:
            self._pools = await self._scheduler.list_pools()
            self._pools_until = time.monotonic() + _POOLS_SECONDS
        return self._pools

    async def some_pools(self, *, fresh: bool = False) -> list[pb.PoolSummary]:
        """Raises Unavailable while no trainer or sampler has registered yet."""
        pools = await self.pools(fresh=fresh) or await self.pools(fresh=True)
        if not pools:
            raise Unavailable("no pool has registered with this mesh yet; retry in a moment")
        return pools
