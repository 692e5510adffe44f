"""What settled for one client of a sampling session: in order, across replicas, never lost, never doubled."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Forbidden, InvalidInput, UnknownId
from services.common.ids import CompletionsWait
from services.scheduler.sampling.completions import MOST_RETRIEVED
from services.scheduler.settings import Settings
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    FrontMesh,
    Replica,
    base_sampler,
    refused,
    result,
    sample_request,
    session,
    unserved_pool,
    watching,
)
from tests.contract.scheduler.front.test_front_watch import _open_waits
from tests.doubles.eventually import eventually

CLONE = 10**9


async def listed(
    replica: Replica, sampler: str, after: int = 0, *, clone: int = 0, tenant: str = ALICE, limit: int = 0,
    retrieved: tuple[str, ...] = (),
) -> pb.ListCompletionsReply:  # fmt: skip
    return await replica.scheduler.ListCompletions(
        pb.ListCompletionsRequest(
            tenant_id=tenant,
            sampling_session_id=sampler,
            clone=clone,
            after=after,
            limit=limit,
            retrieved_request_ids=retrieved,
        )
    )


async def submitted(replica: Replica, sampler: str, *seqs: int) -> list[str]:
    return [(await replica.scheduler.Submit(sample_request(sampler, seq))).request_id for seq in seqs]


async def idle_sampler(replica: Replica) -> str:
    """A sampling session whose samples nobody serves: they settle when they are cancelled."""
    await unserved_pool(replica)
    return await base_sampler(replica, await session(replica))


async def cancel(replica: Replica, *request_ids: str) -> None:
    for request_id in request_ids:
        await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=ALICE, request_id=request_id))


async def test_completions_come_in_the_order_of_settlement_with_their_sizes(
    replica: Replica, start_sampler: StartSampler
) -> None:
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    ids = []
    for seq in (5, 3, 4):
        ids += await submitted(replica, sampler, seq)
        await result(replica, ids[-1])
    reply = await listed(replica, sampler)
    assert [one.request_id for one in reply.completions] == ids
    sizes = [(await result(replica, one)).ByteSize() for one in ids]
    assert [one.result_bytes for one in reply.completions] == sizes
    assert not any(one.failed for one in reply.completions)


async def test_a_cursor_works_at_every_replica_and_forgets_only_what_was_seen(mesh: FrontMesh) -> None:
    first, second = await mesh.replica(), await mesh.replica()
    sampler = await idle_sampler(first)
    ids = await submitted(first, sampler, *range(6))
    await cancel(second, *ids)
    some = await listed(first, sampler, limit=2)
    lost = await listed(second, sampler, limit=2)  # the answer of the first never arrived
    assert some == lost
    rest = await listed(second, sampler, some.cursor)
    assert [one.request_id for one in [*some.completions, *rest.completions]] == ids
    assert [one.request_id for one in (await listed(first, sampler, some.cursor)).completions] == ids[2:]
    end = await listed(first, sampler, rest.cursor)
    assert not end.completions and end.cursor == rest.cursor
    more = await submitted(first, sampler, 6)
    await cancel(first, *more)
    again = await listed(second, sampler, rest.cursor)
    assert [one.request_id for one in again.completions] == more, "an emptied list goes on behind its last entry"
    assert again.completions[0].failed


async def test_each_client_of_a_session_sees_its_own(replica: Replica) -> None:
    sampler = await idle_sampler(replica)
    mine, yours, far = await submitted(replica, sampler, 0, 7 * CLONE + 3, 656_955_740 * CLONE + 1)
    await cancel(replica, mine, yours, far)
    for clone, request_id in ((0, mine), (7, yours), (656_955_740, far)):
        assert [one.request_id for one in (await listed(replica, sampler, clone=clone)).completions] == [request_id]


async def test_a_wait_is_answered_by_a_settlement_at_another_replica_FUT_03(mesh: FrontMesh) -> None:
    first, second = await mesh.replica(), await mesh.replica()
    sampler = await idle_sampler(first)
    ids = await submitted(first, sampler, 0, CLONE)
    name = str(CompletionsWait(sampler, 0, 0))
    async with watching(first) as watch:
        await watch.add(name)
        await eventually(lambda: _open_waits(first, 1))
        await cancel(second, ids[1])  # another client's
        with pytest.raises(TimeoutError):
            await watch.next(0.3)
    async with watching(first) as watch:
        await watch.add(name)
        await cancel(second, ids[0])
        event = await watch.next()
        assert (event.request_id, event.state) == (name, pb.WATCH_STATE_SETTLED)
        await watch.add(name)  # there is something already
        assert (await watch.next()).state == pb.WATCH_STATE_SETTLED
    await eventually(lambda: _open_waits(first, 0))


async def test_a_wait_survives_a_lost_subscription(mesh: FrontMesh, redis_client: Redis) -> None:
    replica = await mesh.replica()
    sampler = await idle_sampler(replica)
    (request_id,) = await submitted(replica, sampler, 0)
    async with watching(replica) as watch:
        await watch.add(str(CompletionsWait(sampler, 0, 0)))
        await eventually(lambda: _open_waits(replica, 1))
        await redis_client.client_kill_filter(_type="pubsub")
        await cancel(replica, request_id)
        assert (await watch.next()).state == pb.WATCH_STATE_SETTLED


async def test_foreign_and_unknown_sessions_are_refused_SEC_05(replica: Replica) -> None:
    sampler = await idle_sampler(replica)
    unknown = sampler.replace(":sample:0:", ":sample:9:")
    async with refused(Forbidden):
        await listed(replica, sampler, tenant=BOB)
    async with refused(UnknownId):
        await listed(replica, unknown)
    async with refused(UnknownId):
        await listed(replica, "garbage")
    async with refused(InvalidInput, "prev_cursor"):
        await listed(replica, sampler, (1 << 53) + 1)
    async with refused(InvalidInput, "retrieved_request_ids"):
        await listed(replica, sampler, retrieved=("",) * (MOST_RETRIEVED + 1))
    for tenant, kind in ((BOB, Forbidden), (ALICE, None)):
        request = pb.JoinSamplingSessionRequest(tenant_id=tenant, sampling_session_id=sampler)
        if kind is None:
            assert (await replica.scheduler.JoinSamplingSession(request)).client_number
            continue
        async with refused(kind):
            await replica.scheduler.JoinSamplingSession(request)
    async with watching(replica) as watch:
        await watch.add(str(CompletionsWait(sampler, 0, 0)), tenant=BOB)
        assert (await watch.next()).state == pb.WATCH_STATE_FOREIGN
        await watch.add(str(CompletionsWait(unknown, 0, 0)), "@garbage")
        states = {(event := await watch.next()).request_id: event.state for _ in range(2)}
    assert set(states.values()) == {pb.WATCH_STATE_UNKNOWN} and "@garbage" in states


async def test_what_a_client_retrieved_goes_after_a_grace_and_nothing_else(
    mesh: FrontMesh, redis_client: Redis
) -> None:
    replica = await mesh.replica(retrieved_grace_seconds=60)
    sampler = await idle_sampler(replica)
    other = await base_sampler(replica, sampler.split(":")[0], seq=1)
    mine, kept, open_one = await submitted(replica, sampler, 0, 1, 2)
    (others,) = await submitted(replica, other, 0)
    await cancel(replica, mine, kept, others)
    await listed(replica, sampler, retrieved=(mine, others, open_one, "garbage", "double." + "0" * 32 + ".0"))
    expires = {one: int(await redis_client.hget(_row(one), "expires_ms") or 0) for one in (mine, kept, others)}
    assert expires[kept] - expires[mine] > 3_600_000 and expires[others] >= expires[kept]
    assert await redis_client.hget(_row(open_one), "state") == b"queued"
    assert (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id == mine  # in its grace
    await redis_client.hset(_row(mine), "expires_ms", 1)  # its grace is over
    again = (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id
    assert again != mine
    assert "expired" in (await result(replica, again)).failure.message


async def test_a_large_result_leaves_redis_once_its_client_has_it_FUT_06(
    mesh: FrontMesh, start_sampler: StartSampler, redis_client: Redis
) -> None:
    replica = await mesh.replica(retrieved_grace_seconds=0.1)
    await start_sampler()
    sampler = await base_sampler(replica, await session(replica))
    large = sample_request(sampler, 0, n=4, tokens=40_000)
    large.command.sample.stop.disabled = True
    request_id = (await replica.scheduler.Submit(large)).request_id
    assert (await result(replica, request_id)).sample.ByteSize() > 1 << 20
    segments = [name async for name in redis_client.scan_iter("tm:{p:double}:pay:*")]
    assert len(segments) == 3 and await redis_client.hget(_row(request_id), "result") is None
    assert 0 < await redis_client.pttl(segments[0]) <= 86_400_000
    await listed(replica, sampler, retrieved=(request_id,))
    functions = Functions(redis_client)
    store = SamplingStore(redis_client, functions, SequenceStore(redis_client, functions, 1000))

    async def swept() -> bool:
        await store.sweep("double", 100, 86_400_000)
        return await redis_client.exists(*segments) == 0

    await eventually(swept)
    assert await redis_client.exists(_row(request_id)) == 1, "the row outlives its result"


def test_results_outlive_the_longest_retries_of_the_sdk_FUT_06() -> None:
    settings = Settings(store_root="", pepper_file="")
    assert settings.retention_seconds >= 86_400 > 3_600  # its pause for billing
    assert settings.retrieved_grace_seconds >= 300  # its retries of one call


async def test_the_terminal_answer_of_an_expired_key_is_a_completion_too_IDEM_05(
    replica: Replica, redis_client: Redis
) -> None:
    """Else a client that waits for all of its samples with one request would wait for this one for ever."""
    sampler = await idle_sampler(replica)
    (first,) = await submitted(replica, sampler, 0)
    await cancel(replica, first)
    cursor = (await listed(replica, sampler)).cursor
    await redis_client.hset(_row(first), "expires_ms", 1)
    (second,) = await submitted(replica, sampler, 0)
    assert second != first
    assert [one.request_id for one in (await listed(replica, sampler, cursor)).completions] == [second]


async def test_joining_gives_each_call_its_own_number_and_a_repeat_the_same(mesh: FrontMesh) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    sampler = await idle_sampler(replicas[0])

    async def join(n: int, key: str) -> int:
        request = pb.JoinSamplingSessionRequest(tenant_id=ALICE, sampling_session_id=sampler, idempotency_key=key)
        return int((await replicas[n % 2].scheduler.JoinSamplingSession(request)).client_number)

    unnamed = await asyncio.gather(*(join(n, "") for n in range(10)))
    named = await asyncio.gather(*(join(n, "one call") for n in range(6)))
    assert len({*unnamed, *named}) == 11 and len(set(named)) == 1
    assert min(unnamed) > 10**9, "never a number that a client drew for itself"
    assert max(unnamed) * 10**9 + 10**9 < 2**63


async def test_the_list_of_a_client_that_never_asks_is_bounded(replica: Replica, redis_client: Redis) -> None:
    sampler = await idle_sampler(replica)
    (request_id,) = await submitted(replica, sampler, 0)
    name = keys.completions("double", sampler, 0)
    await redis_client.zadd(name, {f"1 r{n}": -40_000 + n for n in range(40_000)})
    await cancel(replica, request_id)
    assert await redis_client.zcard(name) == 32_768
    assert (await redis_client.zrange(name, -1, -1))[0].endswith(request_id.encode())
    assert 0 < await redis_client.pttl(name) <= 86_400_000


def _row(request_id: str) -> str:
    return keys.req("double", request_id.split(".")[1])
