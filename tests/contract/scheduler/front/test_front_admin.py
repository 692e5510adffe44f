"""The lists an operator looks at."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import admin_pb2 as pb

from services.common.errors import InvalidInput
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    Replica,
    base_sampler,
    refused,
    sample_request,
    session,
)


async def test_futures_are_listed_the_oldest_first(replica: Replica, start_sampler: StartSampler) -> None:
    double = await start_sampler()
    double.faults.add("hold_before", "sample", times=0)
    sampler = await base_sampler(replica, await session(replica))
    submitted = [(await replica.scheduler.Submit(sample_request(sampler, seq))).request_id for seq in range(12)]
    reply = await replica.admin.ListFutures(pb.ListFuturesRequest())
    assert [future.request_id for future in reply.futures] == submitted
    reply = await replica.admin.ListFutures(pb.ListFuturesRequest(limit=5))
    assert [future.request_id for future in reply.futures] == submitted[:5]


async def pages(replica: Replica, tenant: str = "", limit: int = 3) -> list[list[str]]:
    found, cursor = [], ""
    while True:
        request = pb.ListSessionsRequest(tenant_id=tenant, limit=limit, cursor=cursor)
        reply = await replica.admin.ListSessions(request)
        found.append([one.session_id for one in reply.sessions])
        cursor = reply.next_cursor
        if not cursor:
            return found


async def test_sessions_are_listed_page_by_page_the_latest_first(replica: Replica, redis_client: Redis) -> None:
    mine = [await session(replica) for _ in range(5)]
    theirs = [await session(replica, BOB) for _ in range(2)]
    for place, one in enumerate([*mine, *theirs]):  # two by two they were seen last at the same moment
        await redis_client.zadd(keys.SESSIONS, {one: 4_000_000_000_000 + place // 2})
    found = await pages(replica)
    assert [len(page) for page in found[:2]] == [3, 3]
    listed = [one for page in found for one in page]
    assert listed[0] == theirs[1] and sorted(listed) == sorted([*mine, *theirs])
    assert sorted(one for page in await pages(replica, BOB) for one in page) == sorted(theirs)
    assert sorted(one for page in await pages(replica, ALICE, limit=1) for one in page) == sorted(mine)
    (shown,) = (await replica.admin.ListSessions(pb.ListSessionsRequest(tenant_id=BOB, limit=1))).sessions
    assert (shown.tenant_id, shown.state, shown.sdk_version) == (BOB, "open", "0.38.0")


@pytest.mark.parametrize("cursor", ["x", "1.x", f"1.{'a' * 400}", "-1.00000000-0000-4000-8000-000000000000", "1e3."])
async def test_a_cursor_that_is_none_is_refused(replica: Replica, cursor: str) -> None:
    async with refused(InvalidInput, "next_cursor"):
        await replica.admin.ListSessions(pb.ListSessionsRequest(cursor=cursor))


async def test_a_call_looks_at_what_it_answers_and_a_bounded_number_more(
    replica: Replica, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One page of all costs one read of its rows; of one tenant at most LARGEST_LIMIT are looked at."""
    for _ in range(6):
        await session(replica)
    monkeypatch.setattr("services.scheduler.admin.LARGEST_LIMIT", 2)
    reply = await replica.admin.ListSessions(pb.ListSessionsRequest(tenant_id=BOB))
    assert (list(reply.sessions), reply.next_cursor != "") == ([], True)
    assert await pages(replica, BOB) == [[], [], [], []]
