"""Quotas of sessions and samples, as the front answers them."""

from __future__ import annotations

from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import tenants_pb2 as tenants_pb

from services.common.errors import Busy
from services.scheduler.settings import Settings
from services.scheduler.store import keys
from tests.contract.scheduler.front.mesh import (
    ALICE,
    FrontMesh,
    base_sampler,
    refused,
    sample_request,
    session,
    unserved_pool,
)


async def test_sessions_bound_the_tenant_until_one_ends_SEC_10(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_sessions=2)
    first, _ = [await session(replica, key=name) for name in ("one", "two")]
    async with refused(Busy, "quota sessions", "2 of 2"):
        await session(replica, key="three")
    assert await session(replica, key="one") == first
    await session(replica, tenant="tenant-bob")
    await replica.scheduler.FinishSession(pb.FinishSessionRequest(tenant_id=ALICE, session_id=first, reason="success"))
    await session(replica, key="three")


async def test_places_of_sessions_that_never_came_to_be_are_found(mesh: FrontMesh, redis_client: Redis) -> None:
    replica = await mesh.replica(quota_sessions=1)
    await redis_client.zadd(keys.tenant_sessions(ALICE), {"00000000-0000-4000-8000-000000000000": 1})
    await session(replica)


async def test_a_place_whose_session_is_about_to_be_is_not_given_away_SEC_10(
    mesh: FrontMesh, redis_client: Redis
) -> None:
    """Between the place and its session lies a round trip, in which others are refused."""
    replica = await mesh.replica(quota_sessions=1)
    admitted_ms = int((await redis_client.time())[0]) * 1000
    await redis_client.zadd(keys.tenant_sessions(ALICE), {"00000000-0000-4000-8000-000000000000": admitted_ms})
    async with refused(Busy, "quota sessions"):
        await session(replica)


async def test_refused_sessions_do_not_make_the_mesh_look_through_all_open_ones_each_time(
    mesh: FrontMesh, redis_client: Redis
) -> None:
    replica = await mesh.replica(quota_sessions=30)
    for number in range(30):
        await session(replica, key=str(number))
    await redis_client.config_resetstat()
    for number in range(10):
        async with refused(Busy, "quota sessions"):
            await session(replica, key=f"more {number}")
    looks = (await redis_client.info("commandstats")).get("cmdstat_zrange", {"calls": 0})["calls"]
    reads = (await redis_client.info("commandstats")).get("cmdstat_hmget", {"calls": 0})["calls"]
    assert looks < 25 and reads < 60, (looks, reads)  # the sweeper looks every second too


async def test_a_very_small_rate_is_a_limit(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_requests_per_second=1e-7)
    await unserved_pool(replica)
    sampler = await base_sampler(replica, await session(replica))
    await replica.scheduler.Submit(sample_request(sampler, 0))
    async with refused(Busy, "quota requests_per_second"):
        await replica.scheduler.Submit(sample_request(sampler, 1))


async def test_samples_count_their_prompt_and_all_they_may_write(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_tokens_per_minute=60)
    await unserved_pool(replica)
    sampler = await base_sampler(replica, await session(replica))
    first = await replica.scheduler.Submit(sample_request(sampler, 0, n=4, tokens=20))
    async with refused(Busy, "quota tokens_per_minute"):
        await replica.scheduler.Submit(sample_request(sampler, 1))
    assert (await replica.scheduler.Submit(sample_request(sampler, 0, n=4, tokens=20))).request_id == first.request_id


async def test_usage_is_shown_with_what_is_left_of_the_buckets_SEC_10(mesh: FrontMesh) -> None:
    replica = await mesh.replica(quota_tokens_per_minute=60, quota_requests_per_second=0.001)
    await unserved_pool(replica)
    tenant = (await replica.tenants.CreateKey(tenants_pb.CreateKeyRequest())).key.tenant_id
    before = (await replica.tenants.GetTenant(tenants_pb.GetTenantRequest(tenant_id=tenant))).usage[0]
    assert (before.samples, before.tokens_left, before.requests_left) == (0, 60.0, 1.0)
    sampler = await base_sampler(replica, await session(replica, tenant), tenant=tenant)
    await replica.scheduler.Submit(sample_request(sampler, 0, tenant=tenant, n=4, tokens=20))
    report = await replica.tenants.GetTenant(tenants_pb.GetTenantRequest(tenant_id=tenant))
    (usage,) = report.usage
    assert report.sessions == 1
    assert (usage.samples, usage.open_futures, usage.models) == (1, 1, 0)
    assert usage.queued_bytes > 0
    assert 60 - 83 <= usage.tokens_left < 0 and usage.requests_left < 0.5


def test_the_default_lies_above_what_one_sdk_client_has_in_flight_SAMP_12() -> None:
    assert Settings(store_root="", pepper_file="").quotas.samples > 2048
