"""Token pieces asked of the samplers."""

from __future__ import annotations

from services.scheduler.sampling.fleet import Fleet


class FleetPieces:
    """Implements pieces.PieceSource: any sampler of a pool knows them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def pieces(self, pool: str, tokens: bytes, seconds: float) -> list[bytes]:
        return await self._fleet.any_answer(pool, "pieces", seconds, lambda link, left: link.pieces(tokens, left))
