"""Waiting: across replicas, for many at once, and through a lost subscription."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Gone, Pending
from services.scheduler import watch as watch_module
from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import (
    ALICE,
    BOB,
    FrontMesh,
    Replica,
    base_sampler,
    refused,
    sample_request,
    session,
    unserved_pool,
    watching,
    whole,
)
from tests.doubles.eventually import eventually
from tests.doubles.valkey import single_server

FEW = 60  # what a replica reads by itself in a second or two; far below the 1,000 waits


async def _waiting_samples(replica: Replica, count: int) -> list[str]:
    """Samples that nobody serves, so a test settles them itself by cancelling."""
    await unserved_pool(replica)
    sampler = await base_sampler(replica, await session(replica))
    replies = await asyncio.gather(*(replica.scheduler.Submit(sample_request(sampler, seq)) for seq in range(count)))
    return [reply.request_id for reply in replies]


async def _cancel(replica: Replica, request_id: str) -> None:
    await replica.scheduler.Cancel(pb.CancelRequest(tenant_id=ALICE, request_id=request_id))


async def test_settlement_at_one_replica_reaches_a_waiter_at_another_FUT_03(
    mesh: FrontMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "REREAD_SECONDS", 3600.0)  # only the message may tell
    first, second = await mesh.replica(), await mesh.replica()
    (request_id,) = await _waiting_samples(first, 1)
    async with watching(first) as watch:
        await watch.add(request_id)
        await eventually(lambda: _open_waits(first, 1))
        await _cancel(second, request_id)
        event = await watch.next()
        assert event.state == pb.WATCH_STATE_SETTLED
        assert event.result.failure.message == "cancelled"


async def test_watch_answers_what_is_settled_unknown_or_foreign_FUT_02(replica: Replica) -> None:
    settled, pending = await _waiting_samples(replica, 2)
    await _cancel(replica, settled)
    unknown = "double." + "0" * 32 + ".0"
    async with watching(replica) as watch:
        await watch.add(settled, pending, unknown, "garbage")
        await watch.add(settled, pending, tenant=BOB)
        states = {}
        for _ in range(5):
            event = await watch.next()
            states[(event.tenant_id, event.request_id)] = event.state
    assert states == {
        (ALICE, settled): pb.WATCH_STATE_SETTLED,
        (ALICE, unknown): pb.WATCH_STATE_UNKNOWN,
        (ALICE, "garbage"): pb.WATCH_STATE_UNKNOWN,
        (BOB, settled): pb.WATCH_STATE_FOREIGN,
        (BOB, pending): pb.WATCH_STATE_FOREIGN,
    }
    async with refused(Gone):
        await whole(replica, unknown)
    async with refused(Pending):
        await whole(replica, pending)


async def test_explanation_of_a_pending_sample_FUT_09(replica: Replica, start_sampler: StartSampler) -> None:
    (request_id,) = await _waiting_samples(replica, 1)
    async with watching(replica) as watch:
        await watch.send(pb.WatchRequest(explain=[pb.WatchItem(tenant_id=ALICE, request_id=request_id)]))
        event = await watch.next()
        assert event.state == pb.WATCH_STATE_PENDING
        assert event.queue_state == "active"
        await watch.send(pb.WatchRequest(explain=[pb.WatchItem(tenant_id=BOB, request_id=request_id)]))
        assert (await watch.next()).state == pb.WATCH_STATE_FOREIGN


async def test_one_settlement_among_a_thousand_waits_costs_few_commands_FUT_07(
    mesh: FrontMesh, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "REREAD_SECONDS", 3600.0)  # only the message may tell
    replica = await mesh.replica(registration_seconds=0.1)
    request_ids = await _waiting_samples(replica, 1_000)
    async with watching(replica) as watch:
        before_waits = len(asyncio.all_tasks())
        await watch.add(*request_ids)
        await eventually(lambda: _open_waits(replica, 1_000))
        before = await _quiet(redis_client)
        await _cancel(replica, request_ids[500])
        event = await watch.next()
        assert event.request_id == request_ids[500]
        assert await _reads(redis_client) - before < FEW
        assert len(asyncio.all_tasks()) - before_waits < 50, "a wait must not cost a task"


async def test_removed_wait_is_not_answered(replica: Replica) -> None:
    kept, removed = await _waiting_samples(replica, 2)
    async with watching(replica) as watch:
        await watch.add(kept, removed)
        await watch.send(pb.WatchRequest(remove=[removed]))
        await eventually(lambda: _open_waits(replica, 1))
        await _cancel(replica, removed)
        await _cancel(replica, kept)
        assert (await watch.next()).request_id == kept


@single_server
async def test_settlement_missed_while_the_subscription_was_away_is_found(
    replica: Replica, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publishing is lost on purpose: the row is settled by hand while nobody listens."""
    monkeypatch.setattr(watch_module, "REREAD_SECONDS", 3600.0)  # only the new subscription may tell
    (request_id,) = await _waiting_samples(replica, 1)
    row = f"tm:{{p:double}}:req:{request_id.split('.')[1]}"
    async with watching(replica) as watch:
        await watch.add(request_id)
        await eventually(lambda: _open_waits(replica, 1))
        await redis_client.hset(row, mapping={"state": "failed", "result": b"", "result_bytes": "0"})
        await redis_client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert (await watch.next()).state == pb.WATCH_STATE_SETTLED


async def test_settlement_without_any_message_is_found_by_the_sweep(
    replica: Replica, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "REREAD_SECONDS", 0.5)
    (request_id,) = await _waiting_samples(replica, 1)
    row = f"tm:{{p:double}}:req:{request_id.split('.')[1]}"
    async with watching(replica) as watch:
        await watch.add(request_id)
        await eventually(lambda: _open_waits(replica, 1))
        await redis_client.hset(row, mapping={"state": "failed", "result": b"", "result_bytes": "0"})
        assert (await watch.next()).state == pb.WATCH_STATE_SETTLED


def _open_waits(replica: Replica, count: int) -> bool:
    parts = replica.app._parts
    assert parts is not None
    return parts.watches.open_waits == count and not parts.watches._due


async def _quiet(redis: Redis) -> int:
    """The count of reads once the dispatcher has seen all samples."""
    before = await _reads(redis)
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(1.2)
            now = await _reads(redis)
            if now - before < FEW:
                return now
            before = now


async def _reads(redis: Redis) -> int:
    stats = await redis.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("hmget", "hgetall", "hget", "time", "fcall")
    )
