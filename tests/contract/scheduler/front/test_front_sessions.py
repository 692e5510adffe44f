"""Sessions, leases and the pub/sub-free parts of the front."""

from __future__ import annotations

import asyncio
import uuid

from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Forbidden, Gone, KeyConflict, UnknownId
from services.scheduler.store import keys
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
)
from tests.doubles.eventually import eventually


async def test_create_session_five_times_over_two_replicas_makes_one_ADD_04(mesh: FrontMesh) -> None:
    replicas = [await mesh.replica(), await mesh.replica()]
    made = await asyncio.gather(*(session(replicas[i % 2], key="stainless-1") for i in range(5)))
    assert len(set(made)) == 1
    assert await session(replicas[0], key="stainless-2") != made[0]
    assert await session(replicas[0], tenant=BOB, key="stainless-1") != made[0]


async def test_used_key_with_another_payload_is_refused_ADD_04(replica: Replica, redis_client: Redis) -> None:
    """And concurrent first uses with two payloads make one session, of one of them."""
    request = pb.CreateSessionRequest(tenant_id=ALICE, idempotency_key="k", sdk_version="0.38.0", tags=["a"])
    session_id = (await replica.scheduler.CreateSession(request)).session_id
    before = await redis_client.hgetall(keys.session(session_id))
    for field, value in (("sdk_version", "0.26.2"), ("user_metadata_json", "{}"), ("display_name", "x")):
        changed = pb.CreateSessionRequest()
        changed.CopyFrom(request)
        setattr(changed, field, value)
        async with refused(KeyConflict, field.removeprefix("user_").removesuffix("_json")):
            await replica.scheduler.CreateSession(changed)
    del request.tags[:]
    async with refused(KeyConflict, "tags"):
        await replica.scheduler.CreateSession(request)
    assert await redis_client.hgetall(keys.session(session_id)) == before
    rivals = [pb.CreateSessionRequest(tenant_id=ALICE, idempotency_key="k2", sdk_version=v) for v in ("1", "2")]
    made = await asyncio.gather(*map(replica.scheduler.CreateSession, rivals), return_exceptions=True)
    assert sorted(isinstance(one, pb.CreateSessionReply) for one in made) == [False, True]


async def test_heartbeat_of_an_unknown_session_is_gone_LEASE_04(replica: Replica) -> None:
    for unknown in (str(uuid.uuid4()), "not-a-session"):
        async with refused(Gone):
            await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=unknown))


async def test_foreign_heartbeat_is_refused_and_does_not_beat_LEASE_03(replica: Replica, redis_client: Redis) -> None:
    session_id = await session(replica)
    long_ago = 1_000
    await redis_client.hset(keys.session(session_id), "beat_ms", long_ago)
    async with refused(Forbidden):
        await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=BOB, session_id=session_id))
    assert int(await redis_client.hget(keys.session(session_id), "beat_ms") or 0) == long_ago
    await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id))
    assert int(await redis_client.hget(keys.session(session_id), "beat_ms") or 0) > long_ago


async def test_silent_session_expires_and_its_samples_fail_LEASE_01(mesh: FrontMesh, redis_client: Redis) -> None:
    """A session that beats through either replica lives on; the silent one is gone with all it had."""
    first, second = await mesh.replica(lease_seconds=1.5), await mesh.replica(lease_seconds=1.5)
    await unserved_pool(first)
    silent, beating = await session(first), await session(first)
    sampler = await base_sampler(first, silent)
    waiting = await first.scheduler.Submit(sample_request(sampler, 0))

    async def expired() -> bool:
        await second.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=beating))
        return await redis_client.hget(keys.session(silent), "state") == b"expired"

    await eventually(expired)
    failure = (await result(second, waiting.request_id)).failure
    assert "lease expired" in failure.message
    async with refused(Gone):
        await first.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=silent))
    async with refused(UnknownId, "lease expired"):
        await first.scheduler.Submit(sample_request(sampler, 1))
    assert (await first.scheduler.Submit(sample_request(sampler, 0))).request_id == waiting.request_id
    assert await redis_client.zscore(keys.SESSIONS, silent) is None
    assert await redis_client.hget(keys.session(beating), "state") == b"open"


async def test_no_lease_runs_down_while_nobody_could_beat_LEASE_06(mesh: FrontMesh, redis_client: Redis) -> None:
    """After a silence of the whole control plane, leases get the downtime back, plus a grace."""
    settings = {"lease_seconds": 3.0, "outage_seconds": 1.5, "grace_seconds": 2.0}
    replica = await mesh.replica(**settings)
    session_id = await session(replica)
    await eventually(lambda: redis_client.hexists(keys.CLOCK, "alive_ms"))
    for task in replica.app._tasks:  # nothing ticks from here on
        task.cancel()
    await replica.stop()
    mesh.replicas.clear()
    await asyncio.sleep(3.2)
    replica = await mesh.replica(**settings)
    before = await redis_client.zscore(keys.SESSIONS, session_id)
    await session(replica)  # a client is here again
    await eventually(lambda: _later(redis_client, session_id, before + 5_000))
    await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id))


async def test_finished_session_admits_nothing_new_but_settles_what_it_took(
    replica: Replica, redis_client: Redis
) -> None:
    await unserved_pool(replica)
    session_id = await session(replica)
    sampler = await base_sampler(replica, session_id)
    accepted = await replica.scheduler.Submit(sample_request(sampler, 0))
    finish = pb.FinishSessionRequest(tenant_id=ALICE, session_id=session_id, reason="success")
    for reason in ("success", "success", "errored"):  # the first outcome stays
        finish.reason = reason
        await replica.scheduler.FinishSession(finish)
    assert await redis_client.hget(keys.session(session_id), "end_reason") == b"success"
    async with refused(UnknownId, "finished"):
        await replica.scheduler.Submit(sample_request(sampler, 1))
    async with refused(UnknownId, "finished"):
        await base_sampler(replica, session_id, seq=1)
    async with refused(Gone):
        await replica.scheduler.Heartbeat(pb.HeartbeatRequest(tenant_id=ALICE, session_id=session_id))
    assert (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id == accepted.request_id
    assert await base_sampler(replica, session_id) == sampler
    async with refused(Forbidden):
        await replica.scheduler.FinishSession(pb.FinishSessionRequest(tenant_id=BOB, session_id=session_id))


async def _later(redis: Redis, session_id: str, than: float) -> bool:
    score = await redis.zscore(keys.SESSIONS, session_id)
    return score is not None and score >= than
