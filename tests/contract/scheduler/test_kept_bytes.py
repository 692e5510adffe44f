"""What is kept for a tenant after the work: results and recorded sequences, counted to the byte until they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Busy, Gone
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.sequences import SequenceRef
from services.scheduler.tenancy.records import Quotas
from tests.contract.scheduler.kept import LARGE, LONG_MS, POOL, SAMPLER, TENANT, Store
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess

SIZES = [10, 600 << 10, LARGE]
IDS = ["in its row", "in segments", "large"]


@pytest.mark.parametrize("size", SIZES, ids=IDS)
@pytest.mark.parametrize("moved", [False, True])
async def test_a_result_counts_from_its_settlement_until_it_expires_FUT_06(
    store: Store, size: int, moved: bool
) -> None:
    bytes_ = await store.settle(0, size, 1)
    assert await store.usage("results") == bytes_
    await store.samples.settle(POOL, store.key(0), types.Result(), 1)  # the second settlement changes nothing
    assert await store.usage("results") == bytes_
    if moved:
        await store.mover.move(POOL)
    await store.expire()
    assert await store.usage("results") == 0
    await store.expire()
    while await store.samples.sweep(POOL, 10, 1):
        await asyncio.sleep(0.005)
        await store.redis.delete(keys.sampling_session(POOL, SAMPLER))
    assert await store.usage("results") == 0
    assert await store.files() == 0
    assert [name async for name in store.redis.scan_iter("*:pay:*")] == []


@pytest.mark.parametrize("size", SIZES, ids=IDS)
async def test_a_deleted_rows_result_no_longer_counts_FUT_06(store: Store, size: int) -> None:
    await store.settle(0, size, 1)
    await store.mover.move(POOL)
    await store.redis.delete(keys.sampling_session(POOL, SAMPLER))
    await asyncio.sleep(0.005)
    assert await store.samples.sweep(POOL, 10, 1) == 1
    assert not await store.redis.exists(keys.req(POOL, store.key(0)))
    await store.expire()
    assert await store.usage("results") == 0
    assert await store.files() == 0


async def test_the_terminal_answer_takes_the_results_place_IDEM_05(store: Store) -> None:
    await store.settle(0, 600 << 10, 1)
    await asyncio.sleep(0.005)
    second = await store.admit(0)
    assert second.endswith(".1")
    answer = await store.results.whole(second, TENANT)
    assert await store.usage("results") == len(answer) < 200
    assert await store.admit(0) == second
    await store.expire()
    assert await store.usage("results") == len(answer), "it stays with its row"


async def test_above_the_quota_nothing_new_is_claimed_FUT_06(store: Store) -> None:
    size = await store.settle(0, 1000)
    tight = Quotas(result_bytes=size)
    with pytest.raises(Busy, match=rf"quota result_bytes: {size} of {size} are kept; fetch your results"):
        await store.admit(1, tight)
    assert not await store.redis.exists(keys.req(POOL, store.key(1)))
    assert await store.admit(0, tight), "a repeat is never refused"
    await store.settle(2, 1000, 1)
    await store.expire()
    assert await store.admit(1, Quotas(result_bytes=size + 1))


async def test_a_delivered_result_makes_room_after_its_grace_FUT_06(store: Store) -> None:
    size = await store.settle(0, 600 << 10)
    request = await store.admit(0)
    assert len(await store.results.whole(request, TENANT)) == size
    await store.results.delivered(request)
    await store.expire()
    assert await store.usage("results") == 0
    with pytest.raises(Gone):
        await store.results.whole(request, TENANT)


async def test_a_late_word_of_delivery_touches_no_later_generation(store: Store) -> None:
    await store.settle(0, 10, 1)
    first = await store.admit(0)
    await asyncio.sleep(0.005)
    second = await store.admit(0)
    await store.results.delivered(first)
    await store.results.delivered(second)
    await store.expire()
    assert (await store.results.whole(second, TENANT)).endswith(b"executed again")


# ---- recorded sequences --------------------------------------------------------------------


async def test_records_count_until_they_end_FUT_06(store: Store) -> None:
    await store.settle(0, 10, records=(1000, 2000))
    counted = await store.usage("records")
    assert 3000 < counted < 3100
    refs = [SequenceRef(POOL, store.key(0), number) for number in (0, 1)]
    assert await store.sequences.sweep(POOL, 10) == 0
    assert len(await store.sequences.use(POOL, TENANT, refs)) == 2
    for member in await store.redis.zrange(keys.records(POOL), 0, -1):
        await store.redis.zadd(keys.records(POOL), {member: 1})  # their time is over
    assert await store.sequences.use(POOL, TENANT, refs) == {}, "what has ended is not there, swept or not"
    assert await store.usage("records") == counted
    assert await store.sequences.sweep(POOL, 10) == 2
    assert await store.usage("records") == 0
    assert [name async for name in store.redis.scan_iter("*:record*:*")] == []


async def test_another_tenants_use_renews_nothing_SEC_05(store: Store) -> None:
    await store.settle(0, 10, records=(1000,))
    before = await store.redis.zrange(keys.records(POOL), 0, -1, withscores=True)
    await asyncio.sleep(0.01)
    assert await store.sequences.use(POOL, "tenant-b", [SequenceRef(POOL, store.key(0), 0)]) == {}
    assert await store.redis.zrange(keys.records(POOL), 0, -1, withscores=True) == before
    assert len(await store.sequences.use(POOL, TENANT, [SequenceRef(POOL, store.key(0), 0)])) == 1
    assert (await store.redis.zrange(keys.records(POOL), 0, -1, withscores=True))[0][1] > before[0][1]


async def test_above_the_quota_of_records_only_recording_is_refused_FUT_06(store: Store) -> None:
    await store.settle(0, 10, records=(1000,))
    tight = Quotas(sequence_bytes=500)
    with pytest.raises(Busy, match=r"quota sequence_bytes: \d+ of 500 are kept"):
        await store.admit(1, tight, records=True)
    assert await store.admit(1, tight)


# ---- training results ----------------------------------------------------------------------


@pytest.fixture
async def tight(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> AsyncIterator[Mesh]:
    quotas = Quotas(result_bytes=1)
    async with running_mesh(valkey.url, tmp_path, quotas=lambda _tenant: quotas) as mesh:
        yield mesh


async def test_training_results_count_and_refuse_what_makes_more_FUT_06(tight: Mesh) -> None:
    model = await tight.opened(new_session())
    with pytest.raises(Busy, match="quota result_bytes"):  # the create's own result is kept
        await tight.batch(model, 1)
    await tight.step(model, 2)  # its result does not grow; it waits for 1
    first = await tight.batch(model, 1)  # now something waits for it
    await tight.done(first)


async def test_a_purged_models_results_no_longer_count_FUT_06(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    await mesh.done(await mesh.batch(model, 1, [3, 4]))
    await mesh.done(await mesh.step(model, 2))
    redis: Any = mesh.redis
    usage = keys.usage("double", "tenant-a")
    assert int(await redis.hget(usage, "results")) > 28
    call = Functions(mesh.redis).call
    await call("train_close_session", [keys.pool_prefix("double")], LONG_MS, session, 1, "over", 0)
    await asyncio.sleep(0.01)

    async def purged() -> bool:
        await call("train_purge", [keys.pool_prefix("double")], 0)
        return not await redis.exists(keys.model("double", model))

    await mesh.until(purged)
    assert int(await redis.hget(usage, "results")) == 0
