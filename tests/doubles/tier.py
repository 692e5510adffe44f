"""A tier of cache blocks in memory: keys without bytes. Samplers that share one share the object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.common.errors import Unavailable
from services.sampler.ports import TierUsage

BLOCK_BYTES = 1000


@dataclass
class MemoryTier:
    """Implements sampler.ports.Tier."""

    keys: set[str] = field(default_factory=set)
    away: bool = False
    """Its catalog does not answer."""

    def usage(self) -> TierUsage:
        blocks = len(self.keys)
        return TierUsage(blocks, blocks * BLOCK_BYTES, 1 << 30, None if self.away else blocks, 0)

    def invalidate(self, keys: Sequence[str] | None) -> int:
        if self.away:
            raise Unavailable("stage kv catalog: Redis does not answer; retry")
        going = self.keys & set(self.keys if keys is None else keys)
        self.keys -= going
        return len(going)
