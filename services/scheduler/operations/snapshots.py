"""Adapters resident in each sampler, as the samplers themselves say."""

from __future__ import annotations

import asyncio

from tinkermesh.v1 import admin_pb2 as pb

from services.common.errors import TinkermeshError
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.link import SamplerLink


class SnapshotList:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def report(self, pools: list[str]) -> pb.ListSnapshotsReply:
        """One that does not answer is listed with its problem."""
        links = [(pool, link) for pool in pools for link in await self._fleet.links(pool)]
        return pb.ListSnapshotsReply(samplers=await asyncio.gather(*(_asked(pool, link) for pool, link in links)))


async def _asked(pool: str, link: SamplerLink) -> pb.SamplerSnapshots:
    report = pb.SamplerSnapshots(pool=pool, sampler_id=link.sampler_id, incarnation=link.incarnation)
    try:
        adapters = await link.adapters()
    except TinkermeshError as error:
        report.problem = error.message
        return report
    for one in sorted(adapters, key=lambda loaded: loaded.adapter.name):
        report.snapshots.add(
            name=one.adapter.name, path=one.adapter.path, engine_id=one.engine_id, in_use=one.in_use, loads=one.loads
        )
    return report
