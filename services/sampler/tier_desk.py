"""What operators may ask of the tier, and may drop from it."""

from __future__ import annotations

import asyncio
import re

from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import InvalidInput, NotSupported
from services.sampler.ports import Tier

MOST_KEYS = 1000
_KEY = re.compile(r"[0-9a-f]{64}")


class TierDesk:
    def __init__(self, tier: Tier | None, facts: pb.KvFacts | None, role: str) -> None:
        self._tier = tier
        self._facts = facts
        self._role = role

    async def status(self) -> pb.TierStatusReply:
        """Raises NotSupported without a tier."""
        usage = await asyncio.to_thread(self._given().usage)
        return pb.TierStatusReply(
            kv=self._facts,
            blocks=usage.blocks,
            bytes=usage.size,
            limit_bytes=usage.limit,
            catalogued=usage.catalogued,
            pending_bytes=usage.pending,
        )

    async def invalidate(self, request: pb.InvalidateBlocksRequest) -> int:
        """Blocks dropped. Raises NotSupported, InvalidInput, Unavailable."""
        tier, keys = self._given(), list(request.keys)
        if request.all == bool(keys):
            raise InvalidInput("give keys, or all: one of the two")
        if len(keys) > MOST_KEYS:
            raise InvalidInput(f"keys: {len(keys)} are given, the limit is {MOST_KEYS}")
        for key in keys:  # they become names of files
            if not _KEY.fullmatch(key):
                raise InvalidInput(f"keys: {key[:80]!r} is no key; one has 64 hexadecimal digits")
        return await asyncio.to_thread(tier.invalidate, None if request.all else keys)

    def _given(self) -> Tier:
        if self._tier is None:
            raise NotSupported(f"this sampler has no tier: its role is {self._role}")
        return self._tier
