"""What an operator reads about one request: each step of its way, where and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redis.asyncio import Redis
from tinkermesh.v1 import admin_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.ids import parse_request_id
from services.scheduler.store import keys
from tests.contract.scheduler.front.conftest import StartSampler, StartTrainer
from tests.contract.scheduler.front.mesh import (
    POOL,
    Replica,
    base_sampler,
    command,
    new_model,
    result,
    sample_request,
    saved,
    session,
    whole,
)
from tests.doubles.eventually import eventually

LATE = 60.0


def optim() -> types.Command:
    adam = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
    return types.Command(optim_step=types.OptimStepBody(adam=adam))


async def stepping(replica: Replica, model: str, seq: int) -> str:
    return (await replica.scheduler.Submit(command(model, seq, optim()))).request_id


async def inspected(replica: Replica, request_id: str) -> pb.RequestReport:
    report: pb.RequestReport = await replica.admin.InspectRequest(pb.InspectRequestRequest(request_id=request_id))
    return report


def events(report: pb.RequestReport) -> list[str]:
    return [entry.event for entry in report.timeline]


def with_event(replica: Replica, request_id: str, event: str) -> Callable[[], Awaitable[pb.RequestReport | None]]:
    async def seen() -> pb.RequestReport | None:
        report = await inspected(replica, request_id)
        return report if event in events(report) else None

    return seen


async def timeline_until(replica: Replica, request_id: str, event: str) -> pb.RequestReport:
    report = await eventually(with_event(replica, request_id, event), LATE)
    assert report is not None
    return report


async def test_a_commands_way_is_told_with_unit_trainer_and_times(
    replica: Replica, start_trainer: StartTrainer
) -> None:
    trainer = await start_trainer()
    model = await new_model(replica, await session(replica))
    request_id = await stepping(replica, model, 1)
    await result(replica, request_id, seconds=LATE)
    report = await timeline_until(replica, request_id, "delivered")
    assert events(report) == ["admitted", "issued", "executed", "settled", "delivered"]
    admitted, issued, executed, settled, delivered = report.timeline
    assert (issued.trainer_id, issued.incarnation) == (trainer.trainer_id, trainer.incarnation)
    assert [issued.unit_id] == [executed.unit_id] == list(report.unit_ids)
    assert (executed.outcome, settled.detail) == ("done", "done")
    times = [entry.unix_ms for entry in report.timeline]
    assert times == sorted(times) and report.now_unix_ms - admitted.unix_ms > 0
    assert executed.ran_ms <= executed.unix_ms - issued.unix_ms + 1000
    assert not report.timeline_cut


async def test_what_nobody_waited_for_is_settled_and_not_delivered(
    replica: Replica, start_trainer: StartTrainer
) -> None:
    await start_trainer()
    model = await new_model(replica, await session(replica))
    request_id = await stepping(replica, model, 1)
    report = await timeline_until(replica, request_id, "settled")
    await saved(replica, model, 2, "later")  # another one is delivered meanwhile
    assert (
        events(report) == events(await inspected(replica, request_id)) == ["admitted", "issued", "executed", "settled"]
    )


async def test_a_save_is_captured_before_it_settles(replica: Replica, start_trainer: StartTrainer) -> None:
    await start_trainer()
    model = await new_model(replica, await session(replica))
    body = types.Command(save_weights=types.SaveWeightsBody(name="a"))
    request_id = (await replica.scheduler.Submit(command(model, 1, body))).request_id
    report = await timeline_until(replica, request_id, "settled")
    assert events(report)[:5] == ["admitted", "issued", "executed", "captured", "settled"]
    assert report.timeline[2].outcome == "captured"


async def test_a_trainers_death_is_part_of_the_story_FAIL_01(replica: Replica, start_trainer: StartTrainer) -> None:
    first = await start_trainer()
    model = await new_model(replica, await session(replica))
    first.faults.add("hold_before", "optim", times=0)
    request_id = await stepping(replica, model, 1)
    await timeline_until(replica, request_id, "issued")
    await first.stop()
    second = await start_trainer()
    report = await timeline_until(replica, request_id, "settled")
    assert events(report)[:6] == ["admitted", "issued", "queued", "issued", "executed", "settled"]
    lost, again, ran = report.timeline[1], report.timeline[3], report.timeline[4]
    assert report.timeline[2].detail == "its trainer was lost"
    assert (lost.incarnation, again.incarnation) == (first.incarnation, second.incarnation)
    assert lost.unit_id != again.unit_id == ran.unit_id
    assert (lost.trainer_id, again.trainer_id) == ("", second.trainer_id)


async def test_a_samples_way_names_its_sampler(replica: Replica, start_sampler: StartSampler) -> None:
    sampler = await start_sampler()
    sampling = await base_sampler(replica, await session(replica))
    request_id = (await replica.scheduler.Submit(sample_request(sampling, 0))).request_id
    await result(replica, request_id, seconds=LATE)
    report = await timeline_until(replica, request_id, "delivered")
    assert events(report) == ["admitted", "issued", "executed", "settled", "delivered"]
    assert [entry.sampler_id for entry in report.timeline[1:3]] == [sampler.sampler_id] * 2


async def test_a_large_result_counts_as_delivered_once_the_gateway_has_all_of_it(
    replica: Replica, start_trainer: StartTrainer
) -> None:
    await start_trainer()
    model = await new_model(replica, await session(replica))
    request_id = await stepping(replica, model, 1)
    assert "delivered" not in events(await timeline_until(replica, request_id, "settled"))
    await whole(replica, request_id)
    first = await inspected(replica, request_id)
    assert events(first)[-1] == "delivered"
    await whole(replica, request_id)
    assert (await inspected(replica, request_id)).timeline[-1] == first.timeline[-1]


async def test_of_very_many_events_the_oldest_go_and_the_row_stays_small(
    replica: Replica, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    trainer = await start_trainer()
    model = await new_model(replica, await session(replica))
    trainer.faults.add("hold_before", "optim", times=0)
    request_id = await stepping(replica, model, 1)
    await timeline_until(replica, request_id, "issued")
    row = keys.req(POOL, parse_request_id(request_id).key)
    many = "\n".join(f"{1000 + number}\tissued\tunit{number}\tlife" for number in range(200))
    await redis_client.hset(row, "events", many)
    trainer.faults.rules.clear()
    report = await timeline_until(replica, request_id, "settled")
    assert report.timeline_cut
    assert len(await redis_client.hget(row, "events")) < 4200
    assert [entry.unit_id for entry in report.timeline if entry.event == "issued"][-1] == "unit199"
    assert "unit0" not in [entry.unit_id for entry in report.timeline]


async def test_a_row_of_an_earlier_release_tells_what_it_has(
    replica: Replica, start_trainer: StartTrainer, redis_client: Redis
) -> None:
    await start_trainer()
    model = await new_model(replica, await session(replica))
    request_id = await stepping(replica, model, 1)
    await timeline_until(replica, request_id, "settled")
    await redis_client.hdel(keys.req(POOL, parse_request_id(request_id).key), "events")
    report = await inspected(replica, request_id)
    assert events(report)[:3] == ["admitted", "issued", "settled"]
    assert report.timeline[1].detail == report.unit_ids[0]
