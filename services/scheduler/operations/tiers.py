"""Tiers of cache blocks that prefill and decode samplers share: what is in them, and what an operator drops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import sampler_pb2

from services.common.errors import InvalidInput, TinkermeshError
from services.scheduler.operations.changes import audited
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.pairing import BOTH


class TierList:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def report(self, pools: Sequence[str]) -> list[pb.TierReport]:
        """Of every sampler with a role; one that does not answer is listed with its problem."""
        links = [(pool, link) for pool in pools for link in await self._fleet.links(pool) if link.role != BOTH]
        return list(await asyncio.gather(*(_asked(pool, link) for pool, link in links)))

    async def invalidate(
        self, pools: Sequence[str], request: pb.AdminInvalidateBlocksRequest, peer: str
    ) -> pb.AdminInvalidateBlocksReply:
        """One sampler of each tier of `pools`, the one that is named, is asked; `peer` is for the audit log.

        Raises InvalidInput.
        """
        with audited(
            "invalidate blocks", peer, pool=request.pool, keys="all" if request.all else ",".join(request.keys)
        ):
            return await self._invalidate(pools, request)

    async def _invalidate(
        self, pools: Sequence[str], request: pb.AdminInvalidateBlocksRequest
    ) -> pb.AdminInvalidateBlocksReply:
        if not request.pool:
            raise InvalidInput("pool: missing; name the pool whose blocks are dropped")
        reports = await self.report(pools)
        by_id = {link.sampler_id: link for link in await self._fleet.links(request.pool)}
        asked: dict[str, str] = {}
        for report in reports:
            if not report.problem and report.sampler_id in by_id:
                asked.setdefault(report.status.kv.tier, report.sampler_id)
        inner = sampler_pb2.InvalidateBlocksRequest(keys=request.keys, all=request.all)
        done = [_dropped(tier, by_id[sampler], inner) for tier, sampler in asked.items()]
        away = [pb.InvalidatedTier(sampler_id=one.sampler_id, problem=one.problem) for one in reports if one.problem]
        return pb.AdminInvalidateBlocksReply(tiers=[*await asyncio.gather(*done), *away])


async def _asked(pool: str, link: SamplerLink) -> pb.TierReport:
    report = pb.TierReport(pool=pool, sampler_id=link.sampler_id, role=link.role)
    try:
        report.status.CopyFrom(await link.tier_status())
    except TinkermeshError as error:
        report.problem = error.message
    return report


async def _dropped(tier: str, link: SamplerLink, request: sampler_pb2.InvalidateBlocksRequest) -> pb.InvalidatedTier:
    """Raises InvalidInput: a request that no sampler takes."""
    report = pb.InvalidatedTier(tier=tier, sampler_id=link.sampler_id)
    try:
        report.dropped = await link.invalidate_blocks(request)
    except InvalidInput:
        raise
    except TinkermeshError as error:
        report.problem = error.message
    return report
