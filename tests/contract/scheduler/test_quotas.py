"""Quotas: refused before the key is claimed, by name, value and remedy; a repeat is never refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from services.common.errors import Busy, KeyConflict, UnknownId
from services.scheduler.store import keys
from services.scheduler.tenancy.records import Quotas
from tests.contract.scheduler.requests import TENANT, batch_request, create_request, new_session
from tests.contract.scheduler.rig import POOL, Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess


class Allowed:
    """Quotas a test changes while the mesh runs."""

    def __init__(self) -> None:
        self.quotas = Quotas()

    def __call__(self, tenant_id: str) -> Quotas:
        return self.quotas

    def set(self, **changes: Any) -> None:
        self.quotas = msgspec.structs.replace(self.quotas, **changes)


@pytest.fixture
def allowed() -> Allowed:
    return Allowed()


@pytest.fixture
async def tight(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path, allowed: Allowed) -> AsyncIterator[Mesh]:
    async with running_mesh(valkey.url, tmp_path, quotas=allowed) as mesh:
        yield mesh
        mesh.trainer.faults.rules.clear()  # a stop would wait for the unit that is held


async def usage(mesh: Mesh) -> dict[str, float]:
    found = await cast("Any", mesh.redis.hgetall(keys.usage(POOL, TENANT)))
    return {name.decode(): float(value) for name, value in found.items()}


async def kept_payloads(mesh: Mesh) -> int:
    segments = [key async for key in mesh.redis.scan_iter(match=f"{keys.pool_prefix(POOL)}:pay:*")]
    return len(segments) + len(list((mesh.root / "payloads").glob("*")))


async def held_model(mesh: Mesh) -> str:
    """A model whose first batch runs and does not end."""
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("hold_before", "pass", times=0)
    await mesh.batch(model, 1)

    async def running() -> bool:
        return bool(mesh.trainer.book.running_unit)

    await mesh.until(running)
    return model


async def test_open_futures_bound_what_waits_and_name_themselves_SEC_10(tight: Mesh, allowed: Allowed) -> None:
    model = await held_model(tight)
    allowed.set(open_futures=2)
    second = await tight.batch(model, 2)
    before = await usage(tight)
    assert before["open"] == 2
    with pytest.raises(Busy, match=r"quota open_futures: 2 of 2 .* await some of them, or ask your operator"):
        await tight.batch(model, 3)
    assert await usage(tight) == before, "a refusal leaves nothing behind"
    assert await tight.batch(model, 2) == second, "a repeat of accepted work is never refused"
    allowed.set(open_futures=3)
    assert await tight.batch(model, 3), "the refused key is free"


async def test_queued_bytes_are_those_of_unsettled_payloads_SEC_10(tight: Mesh, allowed: Allowed) -> None:
    model = await held_model(tight)
    size = int((await usage(tight))["bytes"])
    assert size == len(batch_request(model, 1)[1])
    allowed.set(queued_bytes=2 * size)
    await tight.batch(model, 2)
    with pytest.raises(Busy, match=f"quota queued_bytes: {2 * size} of {2 * size} are queued and {size} more"):
        await tight.batch(model, 3)
    await tight.step(model, 3)  # carries none


@pytest.mark.parametrize("limit", [1 << 20, 10], ids=["in redis", "in a file"])
async def test_a_refused_payload_is_not_kept(tight: Mesh, allowed: Allowed, limit: int) -> None:
    """A client sends a refused request again and again: each would stay for its whole time to live."""
    model = await held_model(tight)
    tight.replicas[0].training.admission._payloads._limit = limit  # type: ignore[attr-defined]
    allowed.set(open_futures=1)

    before = await kept_payloads(tight)
    for _ in range(3):
        with pytest.raises(Busy):
            await tight.batch(model, 2, [50, 60])
    assert await kept_payloads(tight) == before


@pytest.mark.parametrize("limit", [1 << 20, 10], ids=["in redis", "in a file"])
async def test_only_the_first_payload_of_a_repeated_command_is_kept_SEC_10(tight: Mesh, limit: int) -> None:
    """Repeats and conflicts count against no quota, so they must leave nothing behind."""
    model = await held_model(tight)
    tight.replicas[0].training.admission._payloads._limit = limit  # type: ignore[attr-defined]
    first = await tight.batch(model, 2, [50, 60])
    before = await kept_payloads(tight)
    for _ in range(3):
        assert await tight.batch(model, 2, [50, 60]) == first
        with pytest.raises(KeyConflict):
            await tight.batch(model, 2, [50, 61])
        with pytest.raises(UnknownId):
            await tight.batch(f"{model}0", 1, [50, 60])
    assert await kept_payloads(tight) == before
    tight.trainer.faults.rules.clear()
    await tight.done(first)


async def test_what_settles_gives_its_place_back(tight: Mesh) -> None:
    model = await tight.opened(new_session())
    await tight.done(await tight.batch(model, 1))
    await tight.done(await tight.step(model, 2))
    await tight.failed(await tight.batch(model, 3, rejected="broken"))
    found = await usage(tight)
    assert (found["open"], found["bytes"], found["models"]) == (0, 0, 1)
    await tight.done(await tight.unload(model))
    found = await usage(tight)
    assert (found["open"], found["models"]) == (0, 0)


async def test_the_command_a_model_waits_for_is_never_refused_for_occupancy(tight: Mesh, allowed: Allowed) -> None:
    """Otherwise successors that came first would fill the quota and wait for it for ever."""
    model = await tight.opened(new_session())
    allowed.set(open_futures=3, queued_bytes=1)
    for seq in (2, 3, 4):
        await tight.step(model, seq)
    with pytest.raises(Busy):
        await tight.step(model, 5)
    first = await tight.batch(model, 1)
    await tight.done(first)


async def test_models_bound_the_tenant_and_slots_do_not_IDEM_12(tight: Mesh, allowed: Allowed) -> None:
    allowed.set(models=6)
    session_id = new_session()
    made = [await tight.submit(create_request(session_id, seq)) for seq in range(6)]
    for request in made[:4]:
        await tight.done(request)
    assert await tight.state(made[5]) == "queued", "four slots: the others wait, they are not refused"
    with pytest.raises(Busy, match=r"quota models: 6 of 6 are live; unload one or finish its session"):
        await tight.submit(create_request(session_id, 6))
    assert await tight.submit(create_request(session_id, 5)) == made[5]
    await tight.done(await tight.unload(f"{session_id}:train:0"))
    assert await tight.submit(create_request(session_id, 6)), "the refused key was not consumed"


async def test_tokens_per_minute_fill_again_by_the_servers_clock(tight: Mesh, allowed: Allowed) -> None:
    model = await tight.opened(new_session())
    allowed.set(tokens_per_minute=600)
    await tight.batch(model, 1, [500, 300])  # more than is left at once: admitted, and owed
    with pytest.raises(Busy, match=r"quota tokens_per_minute: 600 a minute are used up; send again in [12]\d s"):
        await tight.batch(model, 2, [3])
    await tight.step(model, 2)  # costs no tokens
    left = (await usage(tight))["tok"]
    assert 600 - 802 <= left < -100
    await cast("Any", tight.redis.hincrby(keys.usage(POOL, TENANT), "tok_ms", -21_000))
    await tight.batch(model, 3, [3])


async def test_requests_per_second_count_accepted_ones_only(tight: Mesh, allowed: Allowed) -> None:
    model = await tight.opened(new_session())
    allowed.set(requests_per_second=0.02)
    first = await tight.step(model, 1)
    for _ in range(3):
        with pytest.raises(Busy, match=r"quota requests_per_second: .* send again in \d+ s"):
            await tight.step(model, 2)
        assert await tight.step(model, 1) == first
    await cast("Any", tight.redis.hincrby(keys.usage(POOL, TENANT), "req_ms", -50_000))
    await tight.step(model, 2)


async def test_a_burst_of_ten_seconds_worth_is_let_through(tight: Mesh, allowed: Allowed) -> None:
    model = await tight.opened(new_session())
    allowed.set(requests_per_second=0.4)
    answers = await asyncio.gather(*(tight.step(model, seq) for seq in range(1, 31)), return_exceptions=True)
    accepted = sum(1 for answer in answers if isinstance(answer, str))
    assert 4 <= accepted < 10, "ten seconds' worth, and what came in while they were sent"


async def test_one_tenants_quota_is_no_other_tenants(tight: Mesh, allowed: Allowed) -> None:
    model = await held_model(tight)
    allowed.set(open_futures=1)
    with pytest.raises(Busy):
        await tight.batch(model, 2)
    other = await tight.submit(create_request(new_session(), tenant="tenant-b"))
    assert other


async def test_concurrent_requests_do_not_slip_through_IDEM_10(tight: Mesh, allowed: Allowed) -> None:
    model = await held_model(tight)
    allowed.set(open_futures=5)
    answers = await asyncio.gather(*(tight.step(model, seq) for seq in range(2, 22)), return_exceptions=True)
    assert sum(1 for answer in answers if isinstance(answer, str)) == 4
    assert all(isinstance(answer, (str, Busy)) for answer in answers)
