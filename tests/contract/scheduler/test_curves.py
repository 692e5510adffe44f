"""The curve of a model: what its steps reported, once each, bounded, through deaths, and gone with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.curves import Curve, CurveReader
from services.scheduler.store.training import Settlement
from tests.contract.scheduler.recovering import kill_trainer, live
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_functions import MODEL, Bench, bench, item, submission
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess

__all__ = ["bench"]
LIMIT = 256


async def curve(mesh: Mesh, model: str) -> Curve:
    return await CurveReader(mesh.redis).read(POOL, model)


async def trained(mesh: Mesh, model: str, rounds: range, lengths: tuple[int, ...] = (3, 4)) -> list[tuple[Any, ...]]:
    """(step, loss, positions, learning rate, gradient norm) of each round, as its own futures told them."""
    told = []
    for number in rounds:
        batch = (await mesh.done(await mesh.batch(model, 2 * number - 1, lengths, salt=number))).batch
        step = (await mesh.done(await mesh.step(model, 2 * number))).optim_step
        told.append((number, batch.loss_sum, sum(lengths), 1e-3, step.metrics["grad_norm"]))
    return told


def shown(found: Curve) -> list[tuple[Any, ...]]:
    return [(p.step, p.loss_sum, p.positions, p.learning_rate, p.grad_norm) for p in found.points]


async def test_a_point_is_what_the_futures_of_its_step_told(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    told = await trained(mesh, model, range(1, 4))
    found = await curve(mesh, model)
    assert shown(found) == told
    assert (found.steps, found.stride) == (3, 1)
    assert 0 < found.points[0].unix_ms <= found.points[1].unix_ms <= found.points[2].unix_ms


async def test_a_window_of_several_passes_is_one_point_and_scores_are_none(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    first = (await mesh.done(await mesh.batch(model, 1, [3]))).batch.loss_sum
    await mesh.done(await mesh.batch(model, 2, [50], backward=False))
    second = (await mesh.done(await mesh.batch(model, 3, [4, 5]))).batch.loss_sum
    await mesh.done(await mesh.step(model, 4))
    await mesh.done(await mesh.step(model, 5))  # of an empty window
    with_window, without = (await curve(mesh, model)).points
    assert (with_window.loss_sum, with_window.positions) == (pytest.approx(first + second, rel=1e-12), 12)
    assert without.positions == 0


async def test_a_step_that_is_skipped_is_a_point_without_a_norm(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("skip_step", "optim")
    await mesh.done(await mesh.batch(model, 1))
    await mesh.done(await mesh.step(model, 2))
    (point,) = (await curve(mesh, model)).points
    assert (point.positions, point.grad_norm, point.learning_rate) == (3, None, 1e-3)


async def test_a_trainers_death_and_the_replay_after_it_double_no_point_FAIL_14(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    told = await trained(mesh, model, range(1, 4))
    half = (await mesh.done(await mesh.batch(model, 7, [5]))).batch.loss_sum  # the window is open when it dies
    await kill_trainer(mesh)
    await live(mesh, model)
    assert shown(await curve(mesh, model)) == told
    await mesh.done(await mesh.step(model, 8))
    assert shown(await curve(mesh, model))[-1][:3] == (4, half, 5)


async def test_a_pass_that_its_trainer_did_not_survive_counts_once_FAIL_14(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    held = mesh.trainer.faults.add("hold_after", "pass", times=0)
    batch = await mesh.batch(model, 1, [3, 4])

    async def running() -> bool:
        return bool(mesh.trainer.book.running_unit)

    await mesh.until(running)
    old = await kill_trainer(mesh)
    old.faults.remove(held)
    loss = (await mesh.done(batch)).batch.loss_sum
    await mesh.done(await mesh.step(model, 2))
    assert [row[:3] for row in shown(await curve(mesh, model))] == [(1, loss, 7)]


async def test_a_curve_survives_a_killed_redis_and_goes_on_GAP_16(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path) as mesh:
        model = await mesh.opened(new_session())
        told = await trained(mesh, model, range(1, 3))
        valkey.kill()
        valkey.start()
        told += await trained(mesh, model, range(3, 5))
        assert shown(await curve(mesh, model)) == told


async def test_a_curve_outlives_its_closed_model_and_goes_with_its_rows(mesh: Mesh) -> None:
    session = new_session()
    model = await mesh.opened(session)
    told = await trained(mesh, model, range(1, 3))
    await mesh.done(await mesh.unload(model))
    assert shown(await curve(mesh, model)) == told
    await mesh.replicas[0].training.models.close_session(POOL, session, "finished", settle_accepted=True)
    store = mesh.replicas[0].training._driver._parts.store
    while await store.purge(POOL, -1):
        pass
    assert (await curve(mesh, model)).points == ()
    assert await mesh.redis.exists(keys.curve(POOL, model)) == 0


async def steps(bench: Bench, first: int, count: int) -> None:
    """Each with a window of one position whose loss is the step's number; sequence ids go on behind the bench's own."""
    for step in range(first, first + count):
        batch, optim = f"b{step}", f"o{step}"
        await bench.store.submit("p", submission(batch, str(2 * step - 1), datums=1))
        await bench.store.submit("p", submission(optim, str(2 * step), "optim_step", 1))
        await bench.issue(f"ub{step}", item(batch, 0, 1))
        await bench.settle(f"ub{step}", Settlement("part", b"", repr(float(step)), "1"))
        await bench.issue(f"uo{step}", item(optim, 0, 1, "optim_step"))
        await bench.settle(f"uo{step}", Settlement("done", b"", "0.5", "0.25"))


async def first_steps(bench: Bench) -> None:
    """The two commands that the bench has queued."""
    await bench.issue("ub1", item("b", 0, 3))
    await bench.settle("ub1", Settlement("part", b"", "1.0", "1"))
    await bench.issue("uo1", item("o", 0, 1, "optim_step"))
    await bench.settle("uo1", Settlement("done", b"", "0.5", "0.25"))


async def bench_curve(bench: Bench) -> Curve:
    return await CurveReader(bench.redis).read("p", MODEL)


@pytest.mark.timeout(300)
async def test_a_long_run_keeps_its_whole_shape_in_a_bounded_list(bench: Bench) -> None:
    await first_steps(bench)
    await steps(bench, 2, 2 * LIMIT + 40)
    found = await bench_curve(bench)
    last = 2 * LIMIT + 41
    assert (found.steps, found.stride) == (last, 4)
    kept = [point.step for point in found.points]
    assert kept == list(range(1, last + 1, 4))
    assert all(point.loss_sum == point.step for point in found.points)  # a step's own numbers, never a mean
    assert LIMIT // 2 <= len(kept) <= LIMIT
    assert await bench.redis.llen(keys.curve("p", MODEL)) <= LIMIT


async def test_the_newest_step_is_always_the_last_point(bench: Bench) -> None:
    """Also where it is none of those that are kept."""
    await first_steps(bench)
    await cast("Any", bench.redis).hset(keys.model("p", MODEL), "curve_stride", 64)
    await steps(bench, 2, 3)
    assert [point.step for point in (await bench_curve(bench)).points] == [1, 4]


async def test_a_step_that_was_counted_is_not_counted_again(bench: Bench) -> None:
    """By its sequence id, whatever settles it a second time."""
    await first_steps(bench)
    before = await bench_curve(bench)
    await bench.redis.hset(keys.req("p", "o"), mapping={"state": "queued", "issued": 0})
    await bench.redis.hdel(keys.req("p", "o"), "settled_ms")
    assert await bench.issue("again", item("o", 0, 1, "optim_step"))
    assert await bench.settle("again", Settlement("done", b"", "9.0", "9.0"))
    assert await bench_curve(bench) == before


async def test_a_sum_that_leaves_the_numbers_breaks_no_settlement(bench: Bench) -> None:
    await first_steps(bench)
    for seq in (3, 4):
        await bench.store.submit("p", submission(f"k{seq}", str(seq), datums=1))
        await bench.issue(f"u{seq}", item(f"k{seq}", 0, 1))
        assert await bench.settle(f"u{seq}", Settlement("part", b"", "1.7e308", "1"))
        assert await bench.field(f"k{seq}", "state") == "done"
    await bench.store.submit("p", submission("k5", "5", "optim_step", 1))
    await bench.issue("u5", item("k5", 0, 1, "optim_step"))
    assert await bench.settle("u5", Settlement("done", b"", "", ""))
    newest = (await bench_curve(bench)).points[-1]
    assert newest.loss_sum == float("inf") and newest.positions == 2
