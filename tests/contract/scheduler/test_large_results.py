"""Large results lie in files: moved once, read alike, never left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from services.scheduler.store import keys
from tests.contract.scheduler.kept import LARGE, POOL, TENANT, Store


async def test_a_large_result_leaves_redis_and_reads_the_same_FUT_06(store: Store) -> None:
    size = await store.settle(0, LARGE)
    request = await store.admit(0)
    before = await store.results.whole(request, TENANT)
    assert await store.mover.move(POOL) == 1
    assert [name async for name in store.redis.scan_iter("*:pay:*")] == []
    assert await store.redis.hget(keys.req(POOL, store.key(0)), "result") is None
    assert await store.files() == 1
    assert await store.results.whole(request, TENANT) == before
    assert await store.usage("results") == size
    assert await store.payloads.drop_orphans(POOL, age_seconds=-1.0) == 0, "the row names it"
    assert await store.mover.move(POOL) == 0, "once"


async def test_a_small_result_stays_in_redis(store: Store) -> None:
    await store.settle(0, 8 << 20 >> 1)
    assert await store.mover.move(POOL) == 0
    assert await store.files() == 0


async def test_a_result_that_went_before_its_move_leaves_no_file(store: Store) -> None:
    await store.settle(0, LARGE, 1)
    await store.expire()
    assert await store.mover.move(POOL) == 0
    assert await store.files() == 0
    assert await store.redis.llen(keys.large_results(POOL)) == 0


async def test_two_movers_leave_one_file(store: Store) -> None:
    await store.settle(0, LARGE)
    moved = await asyncio.gather(*(store.mover._move(POOL, store.key(0)) for _ in range(3)))
    assert sum(moved) == 1
    assert await store.files() == 1


async def test_a_reader_finds_a_result_while_it_moves(store: Store) -> None:
    """Where it lay when its row was read may be gone when its pieces are."""
    await store.settle(0, LARGE)
    request = await store.admit(0)
    reader = store.results._reader
    real = reader.uploaded

    async def late(pool: str, parts: Any) -> bytes | None:
        reader.uploaded = real  # type: ignore[method-assign]
        await store.mover.move(POOL)
        return await real(pool, parts)

    reader.uploaded = late  # type: ignore[method-assign]
    assert len(await store.results.whole(request, TENANT)) > LARGE


async def test_a_result_that_was_lost_does_not_hold_up_the_others(store: Store) -> None:
    """Nor end the term of whoever leads the pool: it would begin with the same result again."""
    await store.settle(1, LARGE)
    await store.settle(2, LARGE)
    await store.redis.hdel(keys.req(POOL, store.key(1)), "result_upload", "result_segments")
    assert await store.mover.move(POOL) == 1
    assert await store.redis.llen(keys.large_results(POOL)) == 0
