"""Samplers as routing sees them, and adapters that an operator loads or unloads there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, TinkermeshError, UnknownId
from services.scheduler.operations.changes import LONGEST_NAME, audited
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.pairing import partners, problems

LONGEST_PATH = 1_000


class Engines:
    """`peer`: from where the call came, for the audit log."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def report(self, pools: Sequence[str]) -> list[pb.EngineReport]:
        """One that does not answer is listed with its problem."""
        return [engine for pool in pools for engine in await self._of_pool(pool)]

    async def load(self, request: pb.AdminLoadAdapterRequest, peer: str) -> list[pb.EngineOutcome]:
        """Raises InvalidInput, UnknownId (no such sampler)."""
        _check(name=request.name, path=request.path)
        adapter = types.AdapterRef(name=request.name, path=request.path)
        subject = {"pool": request.pool, "sampler": request.sampler_id, "adapter": request.name}
        with audited("load adapter", peer, **subject):
            return await self._on_each(request.pool, request.sampler_id, lambda link: _load(link, adapter))

    async def unload(self, request: pb.AdminUnloadAdapterRequest, peer: str) -> list[pb.EngineOutcome]:
        """Raises InvalidInput, UnknownId (no such sampler)."""
        _check(name=request.name)
        subject = {"pool": request.pool, "sampler": request.sampler_id, "adapter": request.name}
        with audited("unload adapter", peer, **subject):
            return await self._on_each(request.pool, request.sampler_id, lambda link: link.unload(request.name))

    async def _of_pool(self, pool: str) -> list[pb.EngineReport]:
        links = await self._fleet.links(pool)
        return list(await asyncio.gather(*(_asked(pool, link, links) for link in links)))

    async def _on_each(
        self, pool: str, sampler_id: str, change: Callable[[SamplerLink], Awaitable[bool]]
    ) -> list[pb.EngineOutcome]:
        links = [link for link in await self._fleet.links(pool) if sampler_id in ("", link.sampler_id)]
        if not links:
            raise UnknownId(f"sampler_id {sampler_id[:200]!r}: pool {pool[:200]!r} has no such live sampler")
        return list(await asyncio.gather(*(_changed(link, change) for link in links)))


async def _load(link: SamplerLink, adapter: types.AdapterRef) -> bool:
    """What the link believes may be out of date: the sampler itself is asked."""
    link.forget(adapter.name)
    known = any(one.adapter.name == adapter.name for one in await link.adapters())
    await link.load(adapter)
    return not known


async def _changed(link: SamplerLink, change: Callable[[SamplerLink], Awaitable[bool]]) -> pb.EngineOutcome:
    try:
        return pb.EngineOutcome(sampler_id=link.sampler_id, changed=await change(link))
    except TinkermeshError as error:
        return pb.EngineOutcome(sampler_id=link.sampler_id, problem=error.message)


async def _asked(pool: str, link: SamplerLink, links: Sequence[SamplerLink]) -> pb.EngineReport:
    report = pb.EngineReport(
        pool=pool,
        sampler_id=link.sampler_id,
        incarnation=link.incarnation,
        role=link.role,
        draining=link.draining,
        partners=sorted(one.sampler_id for one in links if partners(link, [one]) or partners(one, [link])),
        unpaired=problems(links).get(link.sampler_id, ""),
    )
    try:
        told, adapters = await asyncio.gather(link.describe(), link.adapters())
    except TinkermeshError as error:
        report.problem = error.message
        return report
    report.running, report.waiting, report.engine = told.running, told.waiting, told.engine
    report.max_running, report.max_adapters = told.max_running, told.max_adapters
    for one in sorted(adapters, key=lambda loaded: loaded.adapter.name):
        report.adapters.add(
            name=one.adapter.name, path=one.adapter.path, engine_id=one.engine_id, in_use=one.in_use, loads=one.loads
        )
    return report


def _check(**fields: str) -> None:
    """Names and paths are repeated in texts. Raises InvalidInput."""
    for field, value in fields.items():
        limit = LONGEST_PATH if field == "path" else LONGEST_NAME
        if not value or len(value) > limit:
            raise InvalidInput(f"{field}: {len(value)} characters; 1 to {limit} are needed")
