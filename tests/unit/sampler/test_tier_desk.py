"""What operators may ask of a tier: keys are checked before any becomes the name of a file."""

from __future__ import annotations

import pytest
from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import InvalidInput, NotSupported, Unavailable
from services.sampler.tier_desk import MOST_KEYS, TierDesk
from tests.doubles.tier import BLOCK_BYTES, MemoryTier

KEYS = [f"{number:064x}" for number in range(4)]
FACTS = pb.KvFacts(engine="e 1", tier="t")


@pytest.fixture
def tier() -> MemoryTier:
    return MemoryTier(set(KEYS))


@pytest.fixture
def desk(tier: MemoryTier) -> TierDesk:
    return TierDesk(tier, FACTS, "prefill")


async def test_status_is_what_the_tier_has(desk: TierDesk, tier: MemoryTier) -> None:
    status = await desk.status()
    assert (status.kv, status.blocks, status.bytes, status.catalogued) == (FACTS, 4, 4 * BLOCK_BYTES, 4)
    tier.away = True
    assert not (await desk.status()).HasField("catalogued")


async def test_blocks_are_dropped_by_key_or_all(desk: TierDesk, tier: MemoryTier) -> None:
    assert await desk.invalidate(pb.InvalidateBlocksRequest(keys=[KEYS[1], "f" * 64])) == 1
    assert tier.keys == {KEYS[0], KEYS[2], KEYS[3]}
    assert await desk.invalidate(pb.InvalidateBlocksRequest(all=True)) == 3
    tier.away = True
    with pytest.raises(Unavailable, match="kv catalog"):
        await desk.invalidate(pb.InvalidateBlocksRequest(all=True))


@pytest.mark.parametrize(
    "key", ["", "../../etc/passwd", "F" * 64, "0" * 63, "0" * 65, f"{'0' * 64}\n", "0" * 62 + "/."]
)
async def test_what_is_no_key_is_refused_by_name(desk: TierDesk, tier: MemoryTier, key: str) -> None:
    with pytest.raises(InvalidInput, match="is no key"):
        await desk.invalidate(pb.InvalidateBlocksRequest(keys=[KEYS[0], key]))
    assert len(tier.keys) == 4


async def test_neither_both_nor_too_many_are_taken(desk: TierDesk, tier: MemoryTier) -> None:
    for request in (pb.InvalidateBlocksRequest(), pb.InvalidateBlocksRequest(keys=KEYS, all=True)):
        with pytest.raises(InvalidInput, match="one of the two"):
            await desk.invalidate(request)
    with pytest.raises(InvalidInput, match=str(MOST_KEYS)):
        await desk.invalidate(pb.InvalidateBlocksRequest(keys=KEYS[:1] * (MOST_KEYS + 1)))
    assert len(tier.keys) == 4


async def test_a_sampler_without_a_tier_says_so() -> None:
    desk = TierDesk(None, None, "both")
    with pytest.raises(NotSupported, match="role is both"):
        await desk.status()
    with pytest.raises(NotSupported, match="role is both"):
        await desk.invalidate(pb.InvalidateBlocksRequest(all=True))
