"""The bytes of single tokens, asked of a sampler once for each token of a pool's vocabulary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

import numpy as np

PIECES_SECONDS = 30.0


class PieceSource(Protocol):
    async def pieces(self, pool: str, tokens: bytes, seconds: float) -> list[bytes]:
        """The bytes of each of `tokens` (int32 little-endian). Raises InvalidInput, Unavailable."""
        ...


class TokenPieces:
    """Holds what it was told: a pool's vocabulary never changes."""

    def __init__(self, source: PieceSource) -> None:
        self._source = source
        self._known: dict[str, dict[int, bytes]] = defaultdict(dict)

    async def of(self, pool: str, tokens: bytes) -> list[bytes]:
        """One per token. Raises Unavailable."""
        ids: list[int] = np.frombuffer(tokens, "<i4").tolist()
        await self._learn(pool, ids)
        known = self._known[pool]
        return [known[one] for one in ids]

    async def _learn(self, pool: str, ids: Iterable[int]) -> None:
        known = self._known[pool]
        unknown = sorted({one for one in ids if one not in known})
        if unknown:
            told = await self._source.pieces(pool, np.array(unknown, "<i4").tobytes(), PIECES_SECONDS)
            known.update(zip(unknown, told, strict=True))
