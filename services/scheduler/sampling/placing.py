"""Finds a place for what is to be generated: room, and the adapter wherever it may run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import Busy, StaleFence, TinkermeshError, Unavailable
from services.scheduler.core.prefixes import starts_of
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.flow import Flow, Place
from services.scheduler.sampling.generation import Generation, Wanted
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.loading import all_loaded
from services.scheduler.sampling.routing import Request, Router, absence, check_complete
from services.scheduler.sampling.spot import Spot

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 0.25
"""Others give room back too, and suspects return: nobody tells."""

BATCH_PATIENCE_SECONDS = 10.0
"""So long batch work finds only the room that samples leave; then it may use the reserve too."""


class Placements:
    """Implements generation.Generations. Those who wait for room in a pool are served in their order, batch work in
    another line.

    Samples fill every sampler to its capacity, at this replica or another, and take freed room at once. So who is
    placed here may go beyond it by the sampler's reserve, or would never get any while samples wait.
    """

    def __init__(self, fleet: Fleet, limits: SamplingLimits, router: Router) -> None:
        self._fleet = fleet
        self._router = router
        self._limits = limits
        self._lines: dict[tuple[str, bool], asyncio.Lock] = {}

    @asynccontextmanager
    async def place(self, wanted: Wanted, seconds: float) -> AsyncIterator[Generation]:
        """See the port."""
        with ExitStack() as held:

            async def move(end: float) -> Place:
                held.close()
                return await self._seated(wanted, end, held)

            place = await self._seated(wanted, asyncio.get_running_loop().time() + seconds, held)
            yield Flow(place, move, wanted, self._limits)

    async def tokenize(self, pool: str, request: pb.TokenizeRequest, seconds: float) -> bytes:
        """See the port."""
        return await self._fleet.any_answer(pool, "tokenize", seconds, lambda link, left: link.tokenize(request, left))

    async def _seated(self, wanted: Wanted, end: float, held: ExitStack) -> Place:
        """A spot that has the adapter, its room counted in `held`; one that cannot load it is passed over."""
        refused: dict[str, TinkermeshError] = {}  # by incarnation
        while True:
            place = await self._room(wanted, end, refused, held)
            failed = await _not_loaded(place[0], wanted, end)
            if not failed:
                return place
            held.close()
            refused.update(failed)

    async def _room(self, wanted: Wanted, end: float, refused: dict[str, TinkermeshError], held: ExitStack) -> Place:
        line = self._lines.setdefault((wanted.pool, wanted.batch), asyncio.Lock())
        try:
            async with asyncio.timeout_at(end), line:
                spot = await self._first_room(wanted, refused)
                return spot, held.enter_context(spot.taking(wanted.sequences))
        except TimeoutError:
            raise self._no_room(wanted, refused, await self._fleet.links(wanted.pool)) from None

    async def _first_room(self, wanted: Wanted, refused: dict[str, TinkermeshError]) -> Spot:
        """Its room is free until the caller's next await."""
        name = wanted.adapter.name if wanted.adapter is not None else ""
        starts = starts_of(wanted.tenant_id, wanted.prompt)
        now = asyncio.get_running_loop().time
        reserved_at = now() + (BATCH_PATIENCE_SECONDS if wanted.batch else 0.0)
        while True:
            request = Request(name, wanted.sequences, starts, wanted.affinity, reserved=now() >= reserved_at)
            links = await self._fleet.links(wanted.pool)
            check_complete(wanted.pool, links)
            spot = self._router.choose(wanted.pool, request, _without(links, refused))
            if spot is not None:
                return spot
            _check_hope(links, refused)
            await self._fleet.change(LOOK_AGAIN_SECONDS)
            for incarnation in [one for one, error in refused.items() if isinstance(error, Busy)]:
                del refused[incarnation]

    def _no_room(
        self, wanted: Wanted, refused: dict[str, TinkermeshError], links: list[SamplerLink]
    ) -> TinkermeshError:
        names = ", ".join(sorted(link.sampler_id for link in links))
        if gone := absence(links):
            return Unavailable(f"stage 'place': pool {wanted.pool} has no sampler that takes requests ({gone})")
        why = "".join(f"; {error.message}" for error in refused.values())
        return Busy(f"stage 'place': no room for {wanted.sequences} sequences in time on {names}{why}; retry later")


def _without(links: list[SamplerLink], refused: dict[str, TinkermeshError]) -> list[SamplerLink]:
    return [link for link in links if link.incarnation not in refused]


def _check_hope(links: list[SamplerLink], refused: dict[str, TinkermeshError]) -> None:
    """Raises what the last one said when those that are left could never do without the ones that are away."""
    if not refused or any(isinstance(error, Busy) for error in refused.values()):
        return
    try:
        check_complete("", _without(links, refused))
    except Unavailable:
        raise list(refused.values())[-1] from None


async def _not_loaded(spot: Spot, wanted: Wanted, end: float) -> dict[str, TinkermeshError]:
    """incarnation -> why it does not take the adapter now; empty = all have it. Raises what no other one would do
    better."""
    failed = await all_loaded(spot.links, wanted.adapter, end)
    for link, error in failed.items():
        if not isinstance(error, (Unavailable, StaleFence, Busy)):
            raise error
        log.warning("pool %s: %s", wanted.pool, error)
        if not isinstance(error, Busy):
            link.suspect()
    return {link.incarnation: error for link, error in failed.items()}
