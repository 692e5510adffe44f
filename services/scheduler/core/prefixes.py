"""Which sampler probably has the start of a prompt in its cache: where such a start was sent last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

BLOCK_BYTES = 32 * 4
"""Tokens of one block, int32 each: what a sampler caches in."""
DIGEST_BYTES = 6
DEEPEST = 1 << 16  # blocks
MOST_PREFIXES = 1 << 17


def _depths() -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, …: two per doubling, so that a prompt of any length has few of them."""
    found = [1]
    step = 1
    while found[-1] < DEEPEST:
        found += [2 * step, 3 * step]
        step *= 2
    return found


DEPTHS = _depths()


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts of one prompt: keys (hex) at rising depths, and the shares of the prompt that they cover."""

    keys: tuple[str, ...]
    shares: tuple[float, ...]


def starts_of(tenant_id: str, prompt: bytes) -> Starts:
    """Caches are not shared between tenants, so neither are the keys.

    `prompt`: int32 little-endian. The last token is always computed, so a block that holds it counts for nothing.
    """
    digest = blake2b(f"{tenant_id}\0".encode(), digest_size=DIGEST_BYTES)
    whole, at = max(0, len(prompt) - 4) // BLOCK_BYTES, 0
    keys: list[str] = []
    for depth in DEPTHS:
        if depth > whole:
            break
        digest.update(prompt[at * BLOCK_BYTES : depth * BLOCK_BYTES])
        at = depth
        keys.append(digest.hexdigest())
    return Starts(tuple(keys), tuple(depth * BLOCK_BYTES / len(prompt) for depth in DEPTHS[: len(keys)]))


def written(starts: Starts) -> str:
    """For a row in Redis; `read` answers it again."""
    return "".join(starts.keys) + (f" {starts.shares[-1]:.3f}" if starts.keys else "")


def read(text: str) -> Starts:
    keys, _, share = text.partition(" ")
    width = 2 * DIGEST_BYTES
    found = tuple(keys[at : at + width] for at in range(0, len(keys), width))
    depths = DEPTHS[: len(found)]
    return Starts(found, tuple(float(share) * depth / depths[-1] for depth in depths))


class PrefixIndex:
    """Bounded; the least recently used start is forgotten. Caches are not shared between adapters ("" = base)."""

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._holders: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def cached(self, adapter: str, starts: Starts) -> Mapping[str, float]:
        """incarnation -> share of the prompt. Who holds a start holds all shorter ones of it."""
        found: dict[str, float] = {}
        for key, share in zip(starts.keys, starts.shares, strict=True):
            if (holder := self._holders.get((adapter, key))) is not None:
                found[holder] = share
        return found

    def sent(self, adapter: str, starts: Starts, incarnation: str) -> None:
        for key in starts.keys:
            self._holders[adapter, key] = incarnation
            self._holders.move_to_end((adapter, key))
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)
