"""Back-pressure long before Redis is full: new payloads wait, everything accepted goes on (GAP-16)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Busy
from services.common.ids import key_hash
from services.scheduler.pressure import Pressure
from services.scheduler.store import keys
from services.scheduler.store.connection import OUTAGES, Redis, connect
from services.scheduler.store.memory import MemoryGate
from tests.contract.scheduler.rig import POOL, OnePool
from tests.doubles.eventually import eventually
from tests.doubles.valkey import ValkeyProcess

MODEL = "00000000-0000-4000-8000-000000000000:train:0"
SAMPLER = f"00000000-0000-4000-8000-000000000000:sample:0:{POOL}"


@pytest.fixture
async def redis_client(own_valkey: ValkeyProcess) -> AsyncIterator[Redis]:
    """Of a server with 40 MiB, of which it takes a few for itself."""
    async with connect(own_valkey.url) as client:
        await client.config_set("maxmemory", 40 << 20)
        yield client


@pytest.fixture
def gate(redis_client: Redis) -> MemoryGate:
    return MemoryGate(redis_client, 0.5)


async def fill(redis: Redis) -> None:
    for number in range(25):
        await redis.set(f"ballast:{number}", bytes(1 << 20))


def command(seq: int, payload_bytes: int = 100) -> pb.SubmitRequest:
    return pb.SubmitRequest(tenant_id="t", model=pb.ModelKey(model_id=MODEL, seq_id=seq), payload_bytes=payload_bytes)


def sample(seq: int) -> pb.SubmitRequest:
    return pb.SubmitRequest(tenant_id="t", sample=pb.SampleKey(sampling_session_id=SAMPLER, seq_id=seq))


@pytest.fixture
def pressure(gate: MemoryGate) -> Pressure:
    return Pressure(gate, OnePool())


async def test_new_payloads_are_refused_above_the_mark_and_taken_below(
    redis_client: Redis, gate: MemoryGate, pressure: Pressure
) -> None:
    await gate.look()
    await pressure.admit(command(5))
    await fill(redis_client)
    assert 0.5 < await gate.look() < 0.9
    for request in (command(5), sample(5)):
        with pytest.raises(Busy, match="memory is .* % full .*stop at 50 %.*operator can raise"):
            await pressure.admit(request)
    assert not await redis_client.keys("tm:*")  # refused before anything was claimed
    await redis_client.flushall()

    async def room() -> bool:
        return await gate.look() < 0.5

    await eventually(room)
    await pressure.admit(command(5))


async def test_what_lets_accepted_work_settle_is_never_refused(
    redis_client: Redis, gate: MemoryGate, pressure: Pressure
) -> None:
    await redis_client.hset(keys.model(POOL, MODEL), "next_seq", "4")
    await redis_client.hset(keys.req(POOL, key_hash("train", MODEL, "7")), "state", "queued")
    await redis_client.hset(keys.req(POOL, key_hash("sample", SAMPLER, 7)), "state", "queued")
    await fill(redis_client)
    await gate.look()
    await pressure.admit(command(4))  # its model waits for this one
    await pressure.admit(command(6, payload_bytes=0))  # a barrier
    await pressure.admit(command(7))  # a repeat
    await pressure.admit(sample(7))
    await pressure.admit(pb.SubmitRequest(create=pb.CreateKey(session_id="s"), payload_bytes=9))
    with pytest.raises(Busy):
        await pressure.admit(command(8))


async def test_without_a_ceiling_nothing_is_refused(redis_client: Redis) -> None:
    await redis_client.config_set("maxmemory", 0)
    gate = MemoryGate(redis_client, 0.0001)
    assert await gate.look() == 0.0
    await Pressure(gate, OnePool()).admit(command(5))


async def test_while_redis_is_away_the_last_look_stands(own_valkey: ValkeyProcess) -> None:
    async with connect(own_valkey.url) as client:
        await client.config_set("maxmemory", 1 << 30)
        gate = MemoryGate(client, 0.0001)
        await gate.look()
        own_valkey.kill()
        with pytest.raises(OUTAGES):
            await gate.look()
        assert gate.closed
