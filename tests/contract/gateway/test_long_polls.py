"""retrieve_future: held while pending, answered at the settlement, robust against lost streams."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.gateway.settings import Settings
from tests.contract.gateway.conftest import AT_ONCE, KEY, Client, Tenants, running
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.doubles.eventually import eventually

STEP = {"adam_params": {}}


async def submit(client: Client, model: str, seq_id: int = 1) -> str:
    return str((await client.post("optim_step", {"model_id": model, "seq_id": seq_id, **STEP})).json()["request_id"])


async def test_post_is_answered_while_the_work_is_pending_API_02(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    await asyncio.wait_for(submit(client, model), AT_ONCE)
    assert scheduler.last.result is None


async def test_poll_answers_at_the_settlement_FUT_03(patient: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = True
    request_id = await submit(patient, model)
    poll = asyncio.create_task(patient.result(request_id))
    await eventually(lambda: scheduler.streams.open_polls > 0)
    assert not poll.done()
    scheduler.release()
    answer = await asyncio.wait_for(poll, AT_ONCE)
    assert answer.json()["metrics"]["grad_norm"] == 1.5


async def test_pending_after_the_poll_is_408_with_its_queue_state_API_05_FUT_09(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    scheduler.streams.queue_state = ("paused_capacity", "all 8 slots are taken")
    request_id = await submit(client, model)
    began = time.monotonic()
    answer = await asyncio.wait_for(client.result(request_id), AT_ONCE)
    assert time.monotonic() - began > 1.9  # the whole poll
    assert answer.status_code == 408
    assert answer.json() == {
        "type": "try_again",
        "request_id": request_id,
        "queue_state": "paused_capacity",
        "queue_state_reason": "all 8 slots are taken",
    }


async def test_a_second_poll_after_408_gets_the_result(client: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = True
    request_id = await submit(client, model)
    assert (await client.result(request_id)).status_code == 408
    poll = asyncio.create_task(client.result(request_id))
    await eventually(lambda: scheduler.streams.open_polls > 0)
    scheduler.release()
    assert (await poll).status_code == 200
    assert (await client.result(request_id)).status_code == 200  # and again: kept for a while


async def test_failed_future_is_200_with_error_and_category_API_05(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    for seq, (category, word) in enumerate(
        [(types.FAILURE_CATEGORY_USER, "user"), (types.FAILURE_CATEGORY_SERVER, "server")], start=1
    ):
        request_id = await submit(client, model, seq)
        scheduler.release(request_id, types.Result(failure=types.Failure(category=category, message="why")))
        for protobuf in (False, True):
            answer = await client.result(request_id, protobuf=protobuf)
            assert (answer.status_code, answer.json()) == (200, {"error": "why", "category": word})


async def test_foreign_poll_is_403_and_does_not_disturb_the_owners_SEC_05(
    client: Client, other: Client, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    request_id = await submit(client, model)
    poll = asyncio.create_task(client.result(request_id))
    await eventually(lambda: scheduler.streams.open_polls > 0)
    assert (await other.result(request_id)).status_code == 403
    scheduler.release()
    assert (await poll).json()["metrics"]
    assert (await other.result(request_id)).status_code == 403


async def test_many_polls_of_one_request_share_one_wait(patient: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = True
    request_id = await submit(patient, model)
    polls = [asyncio.create_task(patient.result(request_id)) for _ in range(20)]
    await eventually(lambda: scheduler.streams.open_polls > 0)
    assert patient.gateway.hub.open_waits == 1
    scheduler.release()
    assert {answer.status_code for answer in await asyncio.gather(*polls)} == {200}
    assert patient.gateway.hub.open_waits == 0


async def test_two_hundred_polls_over_one_stream_FUT_07(patient: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = True
    ids = await asyncio.gather(*(submit(patient, model, seq) for seq in range(1, 201)))
    polls = [asyncio.create_task(patient.result(request_id)) for request_id in ids]
    await eventually(lambda: scheduler.streams.open_polls == 200)
    assert scheduler.streams.count == 1
    scheduler.release()
    assert {answer.status_code for answer in await asyncio.wait_for(asyncio.gather(*polls), AT_ONCE)} == {200}
    assert scheduler.calls.count("GetResult") == 0


async def test_poll_cap_is_429_FUT_07_SEC_10(settings: Settings, scheduler: FakeScheduler, tenants: Tenants) -> None:
    capped = msgspec.structs.replace(settings, max_polls_per_tenant=2, long_poll_seconds=60.0)
    model = scheduler.add_model(tenants.first, scheduler.add_session(tenants.first))
    scheduler.held = True
    async with running(capped) as (http, gateway):
        client = Client(http, gateway, KEY)
        ids = [await submit(client, model, seq) for seq in (1, 2, 3)]
        polls = [asyncio.create_task(client.result(request_id)) for request_id in ids[:2]]
        await eventually(lambda: gateway.hub.open_waits == 2)
        refused = await client.result(ids[2])
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        scheduler.release()
        assert {answer.status_code for answer in await asyncio.gather(*polls)} == {200}
        assert (await client.result(ids[2])).status_code == 200


async def test_lost_wake_up_costs_one_poll_at_most(client: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = scheduler.streams.silent = True
    request_id = await submit(client, model)
    poll = asyncio.create_task(client.result(request_id))
    await eventually(lambda: client.gateway.hub.open_waits == 1)
    scheduler.last.result = types.Result(optim_step=types.OptimResult(metrics={"grad_norm": 2.0}))
    assert (await poll).json() == {"metrics": {"grad_norm": 2.0}}


async def test_drained_polls_are_408_at_once_MESH_03(patient: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.held = True
    request_id = await submit(patient, model)
    poll = asyncio.create_task(patient.result(request_id))
    await eventually(lambda: patient.gateway.hub.open_waits == 1)
    patient.gateway.drain()
    assert (await asyncio.wait_for(poll, AT_ONCE)).status_code == 408
    assert (await asyncio.wait_for(patient.result(request_id), AT_ONCE)).status_code == 408


async def test_lost_streams_leave_no_task_behind(client: Client, scheduler: FakeScheduler, model: str) -> None:
    def writers() -> int:
        names = [str(task.get_coro()) for task in asyncio.all_tasks()]
        return sum("_consume_request_iterator" in name for name in names)

    await eventually(lambda: scheduler.streams.count == 1)
    gc.disable()  # it would collect a forgotten task sooner or later, and asyncio complain
    try:
        for _ in range(3):
            port = scheduler.port
            await scheduler.stop()
            await scheduler.start(f"127.0.0.1:{port}")
            await eventually(lambda: scheduler.streams.count == 1, 10.0)
        await eventually(lambda: writers() == 1)
    finally:
        gc.enable()


# ---- two scheduler replicas ------------------------------------------------------------------


@pytest.fixture
async def replicas(scheduler: FakeScheduler) -> AsyncIterator[tuple[FakeScheduler, FakeScheduler]]:
    """Two servers over one state, as two schedulers over one Redis."""
    second = scheduler.replica()
    await second.start()
    yield scheduler, second
    await second.stop()


async def test_polls_survive_the_death_of_their_scheduler_FAIL_14(
    settings: Settings, replicas: tuple[FakeScheduler, FakeScheduler], tenants: Tenants
) -> None:
    ports = ",".join(f"127.0.0.1:{one.port}" for one in replicas)
    patient = msgspec.structs.replace(settings, scheduler=ports, long_poll_seconds=10.0, retry_seconds=8.0)
    model = replicas[0].add_model(tenants.first, replicas[0].add_session(tenants.first))
    async with running(patient) as (http, gateway):
        client = Client(http, gateway, KEY)
        for one in replicas:
            one.held = True
        ids = [await submit(client, model, seq) for seq in range(1, 11)]
        polls = [asyncio.create_task(client.result(request_id)) for request_id in ids]
        await eventually(lambda: sum(one.streams.open_polls for one in replicas) == 10)
        dying = next(one for one in replicas if one.streams.count)
        living = next(one for one in replicas if one is not dying)
        await dying.stop()
        await eventually(lambda: living.streams.open_polls == 10)
        assert not any(poll.done() for poll in polls)
        living.release()
        assert {answer.status_code for answer in await asyncio.gather(*polls)} == {200}
        assert await submit(client, model, 11)
        await dying.start("127.0.0.1:0")  # for the fixture to stop


async def test_poll_is_408_while_no_scheduler_is_there(
    settings: Settings, tenants: Tenants, scheduler: FakeScheduler, model: str
) -> None:
    scheduler.held = True
    async with running(settings) as (http, gateway):
        client = Client(http, gateway, KEY)
        request_id = await submit(client, model)
        port = scheduler.port
        await scheduler.stop()
        answer = await client.result(request_id)
        assert answer.status_code == 408
        assert "away" in answer.json()["queue_state_reason"]
        await scheduler.start(f"127.0.0.1:{port}")
        poll = asyncio.create_task(client.result(request_id))
        await eventually(lambda: scheduler.streams.open_polls > 0, 10.0)
        scheduler.release()
        assert (await poll).status_code == 200
