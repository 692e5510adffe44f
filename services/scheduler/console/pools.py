"""Pools as a tenant may see them: what is its own by name, of everybody else numbers only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tinkermesh.v1 import console_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.console.queues import BusyModel
from services.scheduler.directory import Directory
from services.scheduler.store.console import ConsoleReader, SampleNumbers
from services.scheduler.store.overview import Overview
from services.scheduler.store.pool_state import slot_state
from services.scheduler.store.registry import Member


class ConsolePools:
    def __init__(self, overview: Overview, reader: ConsoleReader, directory: Directory) -> None:
        self._overview = overview
        self._reader = reader
        self._directory = directory

    async def report(self, facts: types.PoolFacts, tenant_id: str, busy: Sequence[BusyModel]) -> pb.ConsolePool:
        pool = facts.pool
        trainers = await self._directory.live(pool, "trainers")
        without_slot, restoring = await self._overview.recovery(pool)
        samples = await self._reader.samples(pool, tenant_id)
        return pb.ConsolePool(
            base_model=facts.base_model,
            trainers=len(trainers),
            trainers_draining=sum(member.draining for member in trainers),
            paused=bool(await self._overview.breaker(pool)),
            **await self._slots(pool, tenant_id),
            models_without_slot=without_slot + await self._overview.waiting_creates(pool),
            models_restoring=restoring,
            commands_yours=sum(one.depth for one in busy if one.tenant == tenant_id),
            commands_all=sum(one.depth for one in busy),
            samples_yours=samples.yours,
            samples_waiting=samples.waiting,
            samples_running=samples.running,
            samplers=_samplers(await self._directory.live(pool, "samplers"), samples),
        )

    async def _slots(self, pool: str, tenant_id: str) -> Mapping[str, int]:
        """Numbers by field of ConsolePool."""
        holders = [
            holder
            for cell in await self._overview.cells(pool)
            for holder in (await self._overview.slots(pool, cell)).values()
        ]
        held = [holder for holder in holders if slot_state(holder) == "held"]
        owners = [row["tenant"] for row in await self._overview.models(pool, held, ("tenant",))]
        yours = owners.count(tenant_id)
        states = Counter(map(slot_state, holders))
        return {
            "slots_free": states["free"],
            "slots_yours": yours,
            "slots_others": len(held) - yours,
            "slots_unusable": states["unloading"] + states["quarantined"],
        }


def _samplers(members: Sequence[Member], samples: SampleNumbers) -> list[pb.ConsoleSamplers]:
    count, flying = Counter[str](), Counter[str]()
    for member in members:
        role = member.sampler().role
        count[role] += 1
        flying[role] += samples.by_sampler[member.member_id]
    return [pb.ConsoleSamplers(role=role, count=count[role], in_flight=flying[role]) for role in sorted(count)]
