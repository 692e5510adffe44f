"""What of a sample stays, and for how long."""

from __future__ import annotations

from collections.abc import Awaitable

from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    FrontMesh,
    base_sampler,
    result,
    sample_request,
    session,
    unserved_pool,
)
from tests.doubles.eventually import eventually


async def test_result_goes_after_retention_its_row_with_its_session_IDEM_06(
    mesh: FrontMesh, start_sampler: StartSampler, redis_client: Redis, functions: Functions
) -> None:
    replica = await mesh.replica(retention_seconds=0.4)
    await start_sampler()
    session_id = await session(replica)
    sampler = await base_sampler(replica, session_id)
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    await result(replica, reply.request_id)
    row = keys.req("double", reply.request_id.split(".")[1])
    store = SamplingStore(redis_client, functions, SequenceStore(redis_client, Functions(redis_client), 1000))

    async def swept(check: Awaitable[bool]) -> bool:
        await store.sweep("double", 10, 100)
        return await check

    assert await redis_client.hexists(row, "result")
    await eventually(lambda: swept(_without(redis_client, row, "result")))
    assert await redis_client.hget(row, "fingerprint") is not None
    assert await redis_client.ttl(row) == -1

    await replica.scheduler.FinishSession(pb.FinishSessionRequest(tenant_id=ALICE, session_id=session_id))
    await eventually(lambda: swept(_absent(redis_client, row, keys.session(session_id))))


async def _without(redis: Redis, row: str, field: str) -> bool:
    return not await redis.hexists(row, field)


async def _absent(redis: Redis, *rows: str) -> bool:
    return await redis.exists(*rows) == 0


async def test_pending_sample_never_expires_FUT_04(mesh: FrontMesh, redis_client: Redis, functions: Functions) -> None:
    replica = await mesh.replica(retention_seconds=0)
    await unserved_pool(replica)
    sampler = await base_sampler(replica, await session(replica))
    reply = await replica.scheduler.Submit(sample_request(sampler, 0))
    row = keys.req("double", reply.request_id.split(".")[1])
    assert await redis_client.hget(row, "expires_ms") in (None, b"0"), "retention begins at the settlement"
    store = SamplingStore(redis_client, functions, SequenceStore(redis_client, Functions(redis_client), 1000))
    assert await store.sweep("double", 10, 100) == 0
    assert await redis_client.hget(row, "state") in (b"queued", b"running")
    assert await redis_client.ttl(row) == -1
    assert (await replica.scheduler.Submit(sample_request(sampler, 0))).request_id == reply.request_id
