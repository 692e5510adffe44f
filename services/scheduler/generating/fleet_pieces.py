"""Token pieces asked of the samplers."""

from __future__ import annotations

import asyncio

from services.common.errors import Unavailable
from services.scheduler.sampling.fleet import Fleet


class FleetPieces:
    """Implements pieces.PieceSource: any sampler of a pool knows, another one is asked when that is away."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def pieces(self, pool: str, tokens: bytes, seconds: float) -> list[bytes]:
        end = asyncio.get_running_loop().time() + seconds
        away = "it has none"
        for link in sorted(await self._fleet.links(pool), key=lambda link: (not link.usable, link.in_flight)):
            left = end - asyncio.get_running_loop().time()
            try:
                return await link.pieces(tokens, max(left, 0.0))
            except Unavailable as error:
                link.suspect()
                away = error.message
        raise Unavailable(f"stage 'pieces': no sampler of pool {pool} answered: {away}")
