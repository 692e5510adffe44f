"""Who is alive in a pool, and what the pool is: remembered for half a second."""

from __future__ import annotations

from collections.abc import Mapping

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import UnknownId
from services.scheduler.briefly import Briefly
from services.scheduler.ports import CellTrainer
from services.scheduler.store.notices import Notices
from services.scheduler.store.registry import Kind, Member, RegistryStore

VALID_MS = 10_000
REMEMBER_SECONDS = 0.5
KINDS: tuple[Kind, ...] = ("trainers", "samplers")


class Directory:
    """Implements ports.TrainerDirectory, and answers for samplers likewise."""

    def __init__(self, store: RegistryStore, notices: Notices, *, valid_ms: int = VALID_MS) -> None:
        self._store = store
        self._valid_ms = valid_ms
        self._members: dict[tuple[str, Kind], Briefly[list[Member]]] = {}
        self._facts: dict[str, Briefly[types.PoolFacts | None]] = {}
        self._pools = Briefly(store.pools, REMEMBER_SECONDS)
        notices.on_ready(lambda pool, _work: self.refresh(pool))

    def refresh(self, pool: str) -> None:
        """Read `pool` anew at the next question."""
        for kind in KINDS:
            self._members_of(pool, kind).forget()
        self._facts_of(pool).forget()
        self._pools.forget()

    async def live(self, pool: str, kind: Kind) -> list[Member]:
        """Members that renewed in time, the longest-standing first."""
        members = await self._members_of(pool, kind).get()
        alive = [member for member in members if member.seen_ms_ago <= self._valid_ms]
        return sorted(alive, key=lambda member: (member.since_ms, member.member_id))

    async def cells(self, pool: str) -> Mapping[str, CellTrainer]:
        """Each with its longest-standing trainer."""
        found = {member.cell: CellTrainer() for member in await self._members_of(pool, "trainers").get()}
        for member in reversed(await self.live(pool, "trainers")):
            here = found[member.cell]
            if member.draining:
                found[member.cell] = CellTrainer(here.serving, member.trainer())
            else:
                found[member.cell] = CellTrainer(member.trainer(), here.drained)
        return found

    async def replaced(self, pool: str, cell: str, incarnation: str) -> bool:
        alive = [member for member in await self.live(pool, "trainers") if member.cell == cell]
        return bool(alive) and all(member.incarnation != incarnation for member in alive)

    async def samplers(self, pool: str) -> list[pb.RegisterSamplerRequest]:
        return [member.sampler() for member in await self.live(pool, "samplers")]

    async def drained_samplers(self, pool: str) -> frozenset[str]:
        return frozenset(member.member_id for member in await self.live(pool, "samplers") if member.draining)

    async def facts(self, pool: str) -> types.PoolFacts:
        """Raises UnknownId."""
        facts = await self._facts_of(pool).get()
        if facts is None:
            self._facts_of(pool).forget()
            raise UnknownId(f"pool {pool!r} never had a trainer or sampler")
        return facts

    async def pools(self) -> list[types.PoolFacts]:
        return [await self.facts(pool) for pool in await self._pools.get()]

    def _members_of(self, pool: str, kind: Kind) -> Briefly[list[Member]]:
        if (pool, kind) not in self._members:
            self._members[(pool, kind)] = Briefly(lambda: self._store.members(pool, kind), REMEMBER_SECONDS)
        return self._members[(pool, kind)]

    def _facts_of(self, pool: str) -> Briefly[types.PoolFacts | None]:
        if pool not in self._facts:
            self._facts[pool] = Briefly(lambda: self._store.facts(pool), REMEMBER_SECONDS)
        return self._facts[pool]
