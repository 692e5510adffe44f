"""Generations and their tenant's quotas; whatever happens, nothing stays counted."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from services.common.errors import Busy, TinkermeshError, Unavailable
from services.scheduler.store.functions import Functions
from services.scheduler.store.generations import GenerationStore, Held
from services.scheduler.store.sampling import SampleToAdmit, SamplingSession, SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.records import Quotas
from tests.contract.scheduler.front.mesh import ALICE, POOL, refused
from tests.contract.scheduler.generating.conftest import Stage, request
from tests.contract.scheduler.generating.fakes import chunk
from tests.doubles.eventually import eventually

LONG_MS = 3_600_000
ABORTS = 1_000


async def begun(stage: Stage, **fields: Any) -> Any:
    """A call that has said something and goes on until it is cancelled."""
    stage.generations.play = [chunk("a"), asyncio.Event()]
    call = stage.stub.Generate(request(**fields))
    for _ in range(2):
        await call.read()
    return call


async def nothing_open(stage: Stage) -> None:
    await eventually(lambda: stage.generations.placed == stage.generations.streaming == stage.desk.open == 0)

    async def uncounted() -> bool:
        return await stage.counted() == 0

    await eventually(uncounted)


async def test_generations_count_as_samples_in_flight_SEC_10(stage: Stage) -> None:
    stage.quotas[0] = Quotas(samples=2)
    calls = [await begun(stage), await begun(stage)]
    assert await stage.counted() == 2
    async with refused(Busy, "quota samples", "2 of 2"):
        await stage.events()
    calls[0].cancel()

    async def room() -> bool:
        return await stage.counted() == 1

    await eventually(room)
    stage.generations.play = [chunk("b", finish="stop")]
    assert await stage.said() == "b"
    calls[1].cancel()
    await nothing_open(stage)


async def test_samples_and_generations_share_one_quota_SEC_10(
    stage: Stage, redis_client: Redis, functions: Functions
) -> None:
    """Each prompt of a request counts as one sample of `asample` does."""
    samples = SamplingStore(redis_client, functions, SequenceStore(redis_client, functions, LONG_MS))
    await samples.open(POOL, SamplingSession("s:sample:0:double", ALICE, "s", "base", "", "", ""))

    async def sample(seq: int) -> None:
        one = SampleToAdmit("s:sample:0:double", f"{seq:032x}", ALICE, "f", seq, f"q{seq}", b"c", "", b"", "")
        await samples.admit(POOL, one, 3, LONG_MS)

    await sample(0)
    await GenerationStore(functions, lease_ms=LONG_MS).admit(Held(POOL, ALICE, "g", 2), 3, "")
    assert (await TenancyStore(redis_client, functions).usage(POOL, ALICE))["samples"] == 3
    with pytest.raises(Busy, match="quota samples: 3 of 3"):
        await sample(1)
    stage.quotas[0] = Quotas(samples=3)
    async with refused(Busy, "quota samples", "3 of 3"):
        await stage.events()


async def test_a_replica_that_died_counts_no_longer_than_its_lease(redis_client: Redis, functions: Functions) -> None:
    dying = GenerationStore(functions, lease_ms=1)
    await dying.admit(Held(POOL, ALICE, "g", 5), 0, "")
    store = GenerationStore(functions, lease_ms=LONG_MS)

    async def admitted() -> bool:
        try:
            await store.admit(Held(POOL, ALICE, "next", 1), 1, "")
        except Busy:
            return False
        return True

    await eventually(admitted)


async def test_what_runs_long_is_renewed_and_what_ended_is_not_brought_back(stage: Stage) -> None:
    call = await begun(stage)
    name = f"tm:{{p:{POOL}}}:generations:{ALICE}"
    redis: Any = stage.redis
    ((member, _),) = await redis.zrange(name, 0, -1, withscores=True)
    await redis.zadd(name, {member: 1})
    await stage.desk.renew()
    ((_, ends),) = await redis.zrange(name, 0, -1, withscores=True)
    assert ends > 1_000_000
    call.cancel()
    await nothing_open(stage)
    await stage.desk.renew()
    assert await stage.counted() == 0


async def test_rates_are_those_of_asample_SEC_10(stage: Stage) -> None:
    stage.quotas[0] = Quotas(requests_per_second=1e-7)
    assert await stage.said() == "ab"
    async with refused(Busy, "quota requests_per_second"):
        await stage.events()


async def test_tokens_are_charged_when_they_are_known_SEC_10(stage: Stage) -> None:
    """A prompt once, every sequence in full; a debt is waited for, and nothing is tokenized meanwhile."""
    stage.quotas[0] = Quotas(tokens_per_minute=60)
    await stage.events(prompt="hello", max_tokens=20, n=4)
    level = float(await stage.redis.hget(f"tm:{{p:{POOL}}}:usage:{ALICE}", "tok") or "0")  # type: ignore[misc]
    assert -25.5 < level < -24.0, "60 - (5 + 4 * 20)"
    asked = len(stage.generations.tokenized)
    async with refused(Busy, "quota tokens_per_minute", "send again in"):
        await stage.events()
    assert len(stage.generations.tokenized) == asked


@pytest.mark.parametrize("failure", [None, Unavailable("lost")])
async def test_what_ended_is_counted_no_more_PDR_12(stage: Stage, failure: TinkermeshError | None) -> None:
    stage.generations.play = [chunk("a"), failure] if failure else [chunk("a", finish="stop")]
    try:
        await stage.events()
    except grpc.aio.AioRpcError:
        assert failure is not None
    await nothing_open(stage)


async def test_a_client_that_goes_aborts_what_runs_for_it_PDR_12(stage: Stage) -> None:
    call = await begun(stage, n=3)
    assert stage.generations.streaming == 1
    call.cancel()
    await nothing_open(stage)


async def test_a_client_that_reads_nothing_holds_its_sampler_back(stage: Stage) -> None:
    """What is generated waits at the sampler, not in this process."""
    text = "x" * 4096
    stage.generations.play = [chunk(text) for _ in range(5_000)]
    call = stage.call()
    await call.read()
    told = [-1]

    async def still() -> bool:
        told.append(stage.generations.told)
        await asyncio.sleep(0.1)
        return told[-1] == told[-2] > 0

    await eventually(still)
    assert stage.generations.told < 1_000
    call.cancel()
    await nothing_open(stage)


@pytest.mark.timeout(300)
async def test_a_thousand_random_aborts_leave_nothing_counted_PDR_12(stage: Stage) -> None:
    rng = random.Random(12)
    plays: list[Any] = [
        [chunk("a"), chunk("b", finish="stop")], [chunk("a"), asyncio.Event()], [Unavailable("lost")],
        [chunk("a"), Unavailable("lost")], [asyncio.Event()],
    ]  # fmt: skip
    stage.quotas[0] = Quotas(samples=25)

    async def one() -> None:
        call = stage.call(n=2, model="gpt-4" if rng.random() < 0.05 else "tinkermesh/double")
        try:
            async with asyncio.timeout(rng.random() * 0.1):
                async for _ in call:
                    await asyncio.sleep(rng.random() * 0.02)
        except (TimeoutError, grpc.aio.AioRpcError):
            pass
        call.cancel()

    for _ in range(ABORTS // 25):
        stage.generations.plays = [rng.choice(plays) for _ in range(25)]
        await asyncio.gather(*(one() for _ in range(25)))
    await nothing_open(stage)
    stage.generations.plays = []
    stage.generations.play = [chunk("a", finish="stop")]
    assert await stage.said() == "a"
