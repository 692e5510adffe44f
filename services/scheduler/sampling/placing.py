"""Finds a place for what is to be generated: room on a sampler, and the adapter there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, ServerError, StaleFence, TinkermeshError, Unavailable
from services.scheduler.core.prefixes import starts_of
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.generation import Generation, Wanted
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.routing import Router
from services.scheduler.sampling.seat import Seat

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 0.25
"""Others give room back too, and suspects return: nobody tells."""


class Placements:
    """Implements generation.Generations. Those who wait for room in a pool are served in their order."""

    def __init__(self, fleet: Fleet, limits: SamplingLimits, router: Router) -> None:
        self._fleet = fleet
        self._router = router
        self._limits = limits
        self._lines: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def place(self, wanted: Wanted, seconds: float) -> AsyncIterator[Generation]:
        """See the port."""
        with ExitStack() as held:
            link = await self._seated(wanted, asyncio.get_running_loop().time() + seconds, held)
            yield Seat(link, wanted, self._limits)

    async def tokenize(self, pool: str, request: pb.TokenizeRequest, seconds: float) -> bytes:
        """See the port. Asks the least busy sampler first, another one when that is away."""
        end = asyncio.get_running_loop().time() + seconds
        links = sorted(await self._live(pool), key=lambda link: (not link.usable, link.in_flight))
        away: Unavailable | None = None
        for link in links:
            left = end - asyncio.get_running_loop().time()
            try:
                return await link.tokenize(request, max(left, 0.0))
            except Unavailable as error:
                link.suspect()
                away = error
        raise Unavailable(f"stage 'tokenize': no sampler of pool {pool} answered: {away}")

    async def _seated(self, wanted: Wanted, end: float, held: ExitStack) -> SamplerLink:
        """A sampler that has the adapter, its room counted in `held`; one that cannot load it is passed over."""
        refused: dict[str, TinkermeshError] = {}  # by incarnation
        while True:
            link = await self._room(wanted, end, refused, held)
            try:
                await loaded([link], wanted.adapter, end)
                return link
            except (Unavailable, StaleFence, Busy) as error:
                log.warning("pool %s: no place on sampler %s: %s", wanted.pool, link.sampler_id, error)
                held.close()
                refused[link.incarnation] = error
                if not isinstance(error, Busy):
                    link.suspect()

    async def _room(
        self, wanted: Wanted, end: float, refused: dict[str, TinkermeshError], held: ExitStack
    ) -> SamplerLink:
        line = self._lines.setdefault(wanted.pool, asyncio.Lock())
        try:
            async with asyncio.timeout_at(end), line:
                return await self._first_room(wanted, refused, held)
        except TimeoutError:
            raise await self._no_room(wanted, refused) from None

    async def _first_room(self, wanted: Wanted, refused: dict[str, TinkermeshError], held: ExitStack) -> SamplerLink:
        name = wanted.adapter.name if wanted.adapter is not None else ""
        starts = starts_of(wanted.tenant_id, wanted.prompt)
        while True:
            links = [link for link in await self._live(wanted.pool) if link.incarnation not in refused]
            link = self._router.choose(wanted.pool, name, wanted.sequences, starts, links, wanted.affinity)
            if link is not None:
                held.enter_context(link.load_now.taking(wanted.sequences))
                return link
            if not links and not any(isinstance(error, Busy) for error in refused.values()):
                raise next(reversed(refused.values()))
            await self._fleet.change(LOOK_AGAIN_SECONDS)
            for incarnation in [one for one, error in refused.items() if isinstance(error, Busy)]:
                del refused[incarnation]

    async def _live(self, pool: str) -> list[SamplerLink]:
        """Raises Unavailable where there is none."""
        links = await self._fleet.links(pool)
        if not links:
            raise Unavailable(f"stage 'place': pool {pool} has no live sampler")
        return links

    async def _no_room(self, wanted: Wanted, refused: dict[str, TinkermeshError]) -> TinkermeshError:
        links = await self._live(wanted.pool)
        names = ", ".join(sorted(link.sampler_id for link in links))
        if not any(link.usable for link in links):
            return Unavailable(f"stage 'place': no sampler of pool {wanted.pool} can be reached ({names})")
        why = "".join(f"; {error.message}" for error in refused.values())
        return Busy(f"stage 'place': no room for {wanted.sequences} sequences in time on {names}{why}; retry later")


async def loaded(links: Sequence[SamplerLink], adapter: types.AdapterRef | None, end: float) -> None:
    """Returns when every one has acknowledged the adapter. Raises what the first failing one said, with its stage."""
    if adapter is None:
        return
    loads = [asyncio.create_task(_load(link, adapter)) for link in links]
    try:
        async with asyncio.timeout_at(end):
            await asyncio.gather(*loads)
    except TimeoutError:
        silent = ", ".join(link.sampler_id for link, load in zip(links, loads, strict=True) if load.cancelled())
        raise ServerError(f"stage 'load adapter': {adapter.name} was not loaded in time on {silent}") from None
    finally:
        for load in loads:
            load.cancel()


async def _load(link: SamplerLink, adapter: types.AdapterRef) -> None:
    try:
        await link.load(adapter)
    except TinkermeshError as error:
        text = f"stage 'load adapter': {adapter.name} on sampler {link.sampler_id}: {error.message}"
        raise type(error)(text) from error
