"""Commands of one model take effect in seq order, whatever order they arrive in."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import Redis

from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess


def executed(mesh: Mesh) -> list[str]:
    """Request ids in the order their datums or steps ran."""
    order: list[str] = []
    for entry in mesh.trainer.journal.entries:
        order += [request for request, _ in entry.get("datums", [])] + entry.get("requests", [])
    return list(dict.fromkeys(order))


async def test_late_predecessors_run_first_ORD_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    step, second, first = await mesh.step(model, 3), await mesh.batch(model, 2), await mesh.batch(model, 1)
    await mesh.done(step)
    order = executed(mesh)
    assert order[-1] == step
    assert set(order[:-1]) == {first, second}


async def test_chunks_that_arrive_first_last_share_a_pass_ORD_02(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    requests = [await mesh.batch(model, seq) for seq in (2, 3, 4, 5, 6, 7, 1)]
    for request in requests:
        await mesh.done(request)
    assert len(mesh.passes()) == 1


async def test_a_gap_blocks_only_its_own_model_ORD_03(mesh: Mesh) -> None:
    blocked, other = await mesh.opened(new_session()), await mesh.opened(new_session())
    waiting = await mesh.batch(blocked, 2)
    for seq in range(1, 11):
        await mesh.done(await mesh.step(other, seq))
    assert await mesh.state(waiting) == "queued"
    book = mesh.replicas[0].training.models
    assert await book.queue_state("double", blocked, 2) == ("active", "waiting for seq_id 1, which has not arrived")


async def test_a_gap_ends_in_a_named_failure_ORD_04(valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path) -> None:
    async with running_mesh(valkey.url, tmp_path, gap_timeout_seconds=0.3) as mesh:
        model = await mesh.opened(new_session())
        failure = await mesh.failed(await mesh.batch(model, 2))
        assert "waiting for seq_id 1" in failure.message
        assert failure.category == 1
        assert mesh.passes() == []


async def test_a_filled_gap_does_not_time_out_ORD_04(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, gap_timeout_seconds=1.5) as mesh:
        model = await mesh.opened(new_session())
        late, early = await mesh.batch(model, 2), await mesh.batch(model, 1)
        await mesh.done(late)
        await mesh.done(early)
        await asyncio.sleep(2.6)  # longer than the timeout and a sweep: nothing may close the model
        await mesh.done(await mesh.batch(model, 3))


async def test_an_invalid_command_fails_in_its_turn_and_splits_the_run_ORD_05_ORD_07_FAIL_17(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    first = await mesh.batch(model, 1)
    second = await mesh.batch(model, 2, backward=False)
    third = await mesh.batch(model, 3, rejected="datum 0: target_tokens missing")
    fourth = await mesh.batch(model, 4)
    assert await mesh.state(third) == "queued"
    mesh.trainer.faults.remove(hold)
    await mesh.done(fourth)
    assert executed(mesh) == [first, second, fourth]
    failure = await mesh.failed(third)
    assert (failure.message, failure.category) == ("datum 0: target_tokens missing", 1)
    step = await mesh.done(await mesh.step(model, 5))
    assert step.optim_step.metrics["window_rejected_requests"] == 1
    step = await mesh.done(await mesh.step(model, 6))
    assert "window_rejected_requests" not in step.optim_step.metrics


async def test_a_rejected_head_settles_without_the_trainer_ORD_07(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    request = await mesh.batch(model, 1, rejected="data: is empty")
    assert await mesh.state(request) == "failed"
    await mesh.done(await mesh.step(model, 2))


async def test_a_step_waits_for_every_part_of_a_split_request_ORD_06(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=10) as mesh:
        model = await mesh.opened(new_session())
        batch, step = await mesh.batch(model, 1, [4, 4, 4, 4, 4]), await mesh.step(model, 2)
        metrics = (await mesh.done(step)).optim_step.metrics
        assert mesh.kinds() == ["init", "pass", "pass", "pass", "optim"]
        assert metrics["window_datums"] == 5
        assert (await mesh.done(batch)).batch.lengths == [4, 4, 4, 4, 4]


async def test_outputs_come_back_in_the_requests_own_order_ORD_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    lengths = [2, 9, 4, 7]
    async with running_mesh(valkey.url, tmp_path, unit_tokens=14) as mesh:
        model = await mesh.opened(new_session())
        split = (await mesh.done(await mesh.batch(model, 1, lengths, backward=False))).batch
        assert len(mesh.passes()) == 2
        alone = b""
        for index, length in enumerate(lengths):
            seq = index + 2
            same_datum = 1000 + index - seq * 1000
            request = await mesh.batch(model, seq, [length], backward=False, salt=same_datum)
            alone += (await mesh.done(request)).batch.logprobs
    assert list(split.lengths) == lengths
    assert split.logprobs == alone


async def test_commands_before_the_slot_is_ready_wait_for_it_ORD_10(mesh: Mesh) -> None:
    hold = mesh.trainer.faults.add("hold_before", "init")
    session = new_session()
    create, batch = await mesh.create(session), await mesh.batch(f"{session}:train:0", 1)
    assert await mesh.state(batch) == "queued"
    mesh.trainer.faults.remove(hold)
    await mesh.done(create)
    await mesh.done(batch)


async def test_a_failed_slot_fails_what_waited_for_it_ORD_10_FAIL_04(mesh: Mesh) -> None:
    hold = mesh.trainer.faults.add("hold_before", "init")
    mesh.trainer.faults.add("fail", "init")
    session = new_session()
    create, batch = await mesh.create(session), await mesh.batch(f"{session}:train:0", 1)
    mesh.trainer.faults.remove(hold)
    assert "injected failure" in (await mesh.failed(create)).message
    assert "injected failure" in (await mesh.failed(batch)).message

    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)
    assert mesh.kinds() == ["unload"]
