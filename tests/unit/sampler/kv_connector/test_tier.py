"""Legs and the tier between them, on a real Redis: every wait ends, and says what it waited for."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.common.errors import CacheNotReady, Unavailable
from services.common.redis_url import parse_redis_url
from services.sampler.kv_connector.block_file import BadBlock
from services.sampler.kv_connector.block_store import BlockStore
from services.sampler.kv_connector.catalog import Catalog, CatalogAway
from services.sampler.kv_connector.janitor import Janitor
from services.sampler.kv_connector.tier import KvTier, TierBounds
from services.sampler.kv_metrics import SAMPLER
from tests.doubles.eventually import eventually
from tests.doubles.small_disk import full, small_disk
from tests.doubles.valkey import ValkeyProcess
from tests.unit.sampler.kv_connector.blocks import key, payload, store

KEYS = [key(n) for n in range(4)]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[ValkeyProcess]:
    (tmp_path / "redis").mkdir()
    server = ValkeyProcess(tmp_path / "redis")
    server.start()
    yield server
    server.resume()
    server.kill()


TierMaker = Callable[..., KvTier]


@pytest.fixture
def make_tier(tmp_path: Path, redis: ValkeyProcess) -> Iterator[TierMaker]:
    made: list[KvTier] = []

    def make(blocks: BlockStore | None = None, *, collects: bool = True, **bounds: object) -> KvTier:
        values = {"limit_bytes": 1 << 30, "max_age_seconds": 3600.0, "wait_seconds": 60.0, "strict": True}
        chosen = TierBounds(**{**values, **bounds}, collects=collects)  # type: ignore[arg-type]
        tier = KvTier(blocks or store(tmp_path / "tier"), catalog_of(redis), chosen)
        tier.start()
        made.append(tier)
        return tier

    yield make
    for tier in made:
        tier.stop()


def catalog_of(redis: ValkeyProcess) -> Catalog:
    return Catalog(parse_redis_url(redis.url), "p", "scope")


async def save(tier: KvTier, sequence: str = "s", keys: list[str] = KEYS) -> None:
    async with tier.saving(sequence, keys):
        for name in keys:
            tier.save(sequence, name, payload(name))


async def fetch(tier: KvTier, sequence: str = "d", keys: list[str] = KEYS) -> list[bytes]:
    async with tier.fetched(sequence, keys):
        return [bytes(tier.block(name)) for name in keys]


async def refused(work: object, kind: type[Unavailable] = Unavailable) -> str:
    with pytest.raises(kind) as caught:
        await work  # type: ignore[misc]
    return caught.value.message


async def test_a_prefill_leg_ends_when_all_its_blocks_are_in_the_catalog_PDR_17(
    make_tier: TierMaker, redis: ValkeyProcess
) -> None:
    tier = make_tier()
    await save(tier)
    assert catalog_of(redis).missing(KEYS) == []
    assert await fetch(make_tier(collects=False)) == [payload(name) for name in KEYS]


async def test_a_leg_whose_blocks_never_come_ends_with_their_number_PDR_17(
    make_tier: TierMaker, redis: ValkeyProcess
) -> None:
    tier = make_tier(wait_seconds=0.5)
    entered = tier.saving("s", KEYS)
    await entered.__aenter__()
    tier.save("s", KEYS[0], payload(KEYS[0]))
    await eventually(lambda: catalog_of(redis).missing(KEYS) == KEYS[1:])
    message = await refused(entered.__aexit__(None, None, None), CacheNotReady)
    assert message.startswith("stage kv save: 3 blocks of the prompt are not in the tier after 0.5 s")


async def test_without_strict_a_leg_whose_blocks_never_come_ends_well(make_tier: TierMaker) -> None:
    tier = make_tier(wait_seconds=0.2, strict=False)
    async with tier.saving("s", KEYS):
        pass
    assert tier.idle


async def test_a_decode_leg_waits_for_a_save_in_flight_PDR_17(make_tier: TierMaker) -> None:
    tier, other = make_tier(), make_tier(collects=False)
    await save(tier, keys=KEYS[:3])
    waiting = asyncio.create_task(fetch(other))
    await asyncio.sleep(0)
    await save(tier, "t", KEYS[3:])
    assert await waiting == [payload(name) for name in KEYS]


async def test_a_decode_leg_whose_block_is_missing_names_it_PDR_17(make_tier: TierMaker) -> None:
    await save(make_tier(), keys=KEYS[:2])
    tier = make_tier(collects=False, wait_seconds=0.2)
    message = await refused(fetch(tier), CacheNotReady)
    assert message.startswith(f"stage kv transfer: block {KEYS[2][:16]} (3 of 4 of the prompt) is not in the tier")


def counted(name: str, **labels: str) -> float:
    value = SAMPLER.registry.get_sample_value(f"tinkermesh_sampler_kv_blocks_{name}_total", labels)
    assert value is not None
    return value


async def test_a_corrupt_block_fails_the_leg_at_once_beside_one_whose_file_is_gone(
    make_tier: TierMaker, tmp_path: Path
) -> None:
    blocks = store(tmp_path / "tier")
    tier = make_tier(blocks)
    await save(tier)
    file = blocks.path(KEYS[1])
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    blocks.drop(KEYS[3])
    async with asyncio.timeout(30):  # half of the leg's own bound
        assert "its checksum is another" in await refused(fetch(tier), CacheNotReady)


@pytest.mark.parametrize("strict", [True, False])
async def test_what_a_leg_waits_for_is_counted_once_and_only_when_it_waits_no_longer(
    make_tier: TierMaker, tmp_path: Path, strict: bool
) -> None:
    """Two blocks never come, another cannot be read; a leg that gets its blocks in the end has missed none."""
    blocks = store(tmp_path / "tier")
    await save(make_tier(blocks), keys=KEYS[:2])
    path = blocks.path(KEYS[0])
    path.unlink()
    path.mkdir()  # reading it is an OSError
    before = counted("missed"), counted("refused", cause="unreadable")
    with suppress(CacheNotReady):
        async with make_tier(collects=False, wait_seconds=0.5, strict=strict).fetched("d", KEYS):
            pass
    assert (counted("missed"), counted("refused", cause="unreadable")) == (before[0] + 2, before[1] + 1)
    path.rmdir()
    other = make_tier(collects=False)
    waiting = asyncio.create_task(fetch(other))
    await asyncio.sleep(0.2)
    await save(make_tier(blocks), "t")
    await waiting
    assert counted("missed") == before[0] + 2


async def test_without_strict_what_is_there_is_used_and_the_rest_left_to_the_engine_PDR_17(
    make_tier: TierMaker,
) -> None:
    await save(make_tier(), keys=KEYS[:2])
    tier = make_tier(collects=False, wait_seconds=0.2, strict=False)
    async with tier.fetched("d", KEYS):
        assert [tier.available(name) for name in KEYS] == [True, True, False, False]


async def test_a_corrupt_block_fails_the_leg_at_once_and_is_forgotten(
    make_tier: TierMaker, redis: ValkeyProcess, tmp_path: Path
) -> None:
    blocks = store(tmp_path / "tier")
    tier = make_tier(blocks, wait_seconds=60.0)
    await save(tier)
    file = blocks.path(KEYS[1])
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    assert "is refused: its checksum is another" in await refused(fetch(tier), CacheNotReady)
    assert not file.exists()
    assert catalog_of(redis).missing(KEYS) == [KEYS[1]]
    await save(tier)
    assert await fetch(tier) == [payload(name) for name in KEYS]


async def test_fetched_blocks_are_let_go_with_their_last_leg(make_tier: TierMaker) -> None:
    tier = make_tier()
    await save(tier)
    async with tier.fetched("a", KEYS[:2]):
        async with tier.fetched("b", KEYS):
            tier.loaded("b")
        assert [tier.available(name) for name in KEYS] == [True, True, False, False]
    assert not any(tier.available(name) for name in KEYS)


async def test_a_block_is_read_again_after_a_preemption_and_its_loss_fails_the_leg_PDR_17(
    make_tier: TierMaker, tmp_path: Path
) -> None:
    blocks = store(tmp_path / "tier")
    tier = make_tier(blocks)
    await save(tier)
    with pytest.raises(CacheNotReady, match=f"block {KEYS[0][:16]} is refused: there is no such block"):
        async with tier.fetched("d", KEYS):
            tier.loaded("d")
            assert bytes(tier.block(KEYS[0])) == payload(KEYS[0])
            blocks.drop(KEYS[0])
            with pytest.raises(BadBlock) as lost:
                tier.block(KEYS[0])
            tier.load_failed("d", KEYS[0], lost.value)


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_a_redis_that_is_away_fails_both_legs_within_their_bound_PDR_18(
    make_tier: TierMaker, redis: ValkeyProcess, fault: str
) -> None:
    tier = make_tier(wait_seconds=1.5)
    await save(tier)
    getattr(redis, fault)()
    started = time.monotonic()
    messages = await asyncio.gather(refused(save(tier, "t", [key("new")])), refused(fetch(tier)))
    assert time.monotonic() - started < 30
    assert all(message.startswith("stage kv ") for message in messages), messages
    assert "stage kv catalog: Redis does not answer" in messages[1]


async def test_a_redis_that_lost_everything_is_told_again_PDR_18_GAP_15(
    make_tier: TierMaker, redis: ValkeyProcess
) -> None:
    tier = make_tier(wait_seconds=30.0)
    await save(tier)
    redis.kill()
    shutil.rmtree(redis.directory)
    redis.directory.mkdir()
    redis.start()
    assert await fetch(make_tier(collects=False, wait_seconds=30.0)) == [payload(name) for name in KEYS]
    catalog = catalog_of(redis)
    await eventually(catalog.is_whole)
    assert catalog.count() == len(KEYS)


async def test_a_full_disk_fails_the_leg_and_the_next_one_is_well(make_tier: TierMaker, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        blocks = store(disk)
        tier = make_tier(blocks)
        with full(disk):
            assert "the tier's disk is full" in await refused(save(tier))
        await save(tier, "another leg")  # the first one's other blocks may fail still
        tier.stop()


def janitor(blocks: BlockStore, redis: ValkeyProcess, **bounds: object) -> Janitor:
    values = {"limit_bytes": 1 << 30, "max_age_seconds": 3600.0, "collects": True}
    return Janitor(blocks, catalog_of(redis), **{**values, **bounds})  # type: ignore[arg-type]


def test_the_longest_unused_go_when_there_is_no_room(redis: ValkeyProcess, tmp_path: Path) -> None:
    blocks = store(tmp_path / "tier")
    sizes = [blocks.write(name, payload(name)) for name in KEYS]
    for age, name in enumerate(reversed(KEYS)):
        stamp = time.time() - 10 + age  # KEYS[0] is the youngest
        os.utime(blocks.path(name), (stamp, stamp))
    janitor(blocks, redis, limit_bytes=3 * sizes[0]).round()
    assert {entry.key for entry in blocks.entries()} == set(KEYS[:2])
    assert catalog_of(redis).missing(KEYS) == KEYS[2:]


def test_what_is_too_old_goes(redis: ValkeyProcess, tmp_path: Path) -> None:
    blocks = store(tmp_path / "tier")
    for name in KEYS:
        blocks.write(name, payload(name))
    os.utime(blocks.path(KEYS[0]), (1, 1))
    janitor(blocks, redis, collects=False).round()
    assert len(list(blocks.entries())) == 4
    janitor(blocks, redis).round()
    assert {entry.key for entry in blocks.entries()} == set(KEYS[1:])


async def test_invalidated_blocks_are_gone_from_directory_and_catalog(
    make_tier: TierMaker, redis: ValkeyProcess
) -> None:
    await save(make_tier())
    tier = make_tier(collects=False, wait_seconds=0.2)
    assert tier.invalidate([KEYS[1], key("unknown")]) == 1
    assert f"block {KEYS[1][:16]} (2 of 4" in await refused(fetch(tier))
    assert tier.usage().blocks == tier.usage().catalogued == 3
    assert tier.invalidate(None) == 3
    assert catalog_of(redis).count() == 0


async def test_invalidation_without_a_catalog_drops_nothing(make_tier: TierMaker, redis: ValkeyProcess) -> None:
    tier = make_tier()
    await save(tier)
    redis.kill()
    with pytest.raises(CatalogAway):
        tier.invalidate(None)
    assert (tier.usage().blocks, tier.usage().catalogued) == (4, None)


async def test_blocks_the_engine_has_are_not_fetched(make_tier: TierMaker) -> None:
    await save(make_tier(), keys=KEYS[2:])
    tier = make_tier(collects=False, wait_seconds=0.2)
    async with tier.fetched("d", KEYS, held=2):
        assert [tier.available(name) for name in KEYS] == [False, False, True, True]
    assert f"block {KEYS[1][:16]} (2 of 4" in await refused(fetch_beyond(tier, 1))


async def fetch_beyond(tier: KvTier, held: int) -> None:
    async with tier.fetched("d", KEYS, held):
        raise AssertionError("it is not there")


async def test_a_thousand_legs_that_go_away_anywhere_leave_nothing(make_tier: TierMaker) -> None:
    """Cancelled before, within and after their wait, on both sides: nothing staged, nothing awaited, all well after."""
    tier, dice = make_tier(), random.Random(3)
    await save(tier)
    legs = []
    for number in range(1000):
        work = save(tier, f"s{number}") if number % 2 else fetch(tier, f"d{number}")
        legs.append(asyncio.create_task(work))
        if dice.random() < 0.3:
            await asyncio.sleep(0)
        if dice.random() < 0.8:
            dice.choice(legs).cancel()
    await asyncio.gather(*legs, return_exceptions=True)
    assert all(leg.cancelled() or leg.exception() is None for leg in legs)
    await eventually(lambda: tier.idle)
    assert await fetch(tier) == [payload(name) for name in KEYS]


async def test_a_fetch_that_outlives_its_leg_keeps_nothing(make_tier: TierMaker, redis: ValkeyProcess) -> None:
    tier = make_tier()
    await save(tier)
    redis.pause()
    leg = asyncio.create_task(fetch(tier))
    await asyncio.sleep(0.1)
    leg.cancel()
    redis.resume()
    await asyncio.gather(leg, return_exceptions=True)
    assert await fetch(tier, "other") == [payload(name) for name in KEYS]
    await eventually(lambda: tier.idle)
