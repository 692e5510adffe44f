"""Work of many models and tenants in one pass, seen at the trainer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.doubles.valkey import ValkeyProcess


@asynccontextmanager
async def held(mesh: Mesh) -> AsyncIterator[None]:
    """What is submitted inside piles up behind a running forward pass of a model of its own."""
    blocker = await mesh.opened(new_session(), tenant="tenant-blocker")
    hold = mesh.trainer.faults.add("hold_before", "pass", times=0)
    await mesh.batch(blocker, 1, [1], backward=False, loss="blocker", tenant="tenant-blocker")

    async def running() -> bool:
        return bool(mesh.trainer.book.running_unit)

    await mesh.until(running)
    yield
    mesh.trainer.faults.remove(hold)


def packs(mesh: Mesh) -> list[set[str]]:
    """Requests of each pass after the blocker's."""
    return [{request for request, _ in entry["datums"]} for entry in mesh.passes()[1:]]


async def three(mesh: Mesh) -> list[str]:
    return [await mesh.opened(new_session(), tenant=f"tenant-{name}") for name in "abc"]


@pytest.mark.parametrize("older", ["step", "batch"])
async def test_the_oldest_arrival_goes_first_PACK_01(mesh: Mesh, older: str) -> None:
    a, b, _ = await three(mesh)
    younger = "batch" if older == "step" else "step"
    async with held(mesh):
        requests = [
            await getattr(mesh, older)(a, 1, tenant="tenant-a"),
            await getattr(mesh, younger)(b, 1, tenant="tenant-b"),
        ]
    for request in requests:
        await mesh.done(request)
    assert mesh.kinds()[-2:] == (["optim", "pass"] if older == "step" else ["pass", "optim"])


async def test_only_equal_ops_losses_and_configs_share_a_pass_PACK_02(mesh: Mesh) -> None:
    a, b, c = await three(mesh)
    clip = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    async with held(mesh):
        one = await mesh.batch(a, 1, loss="ppo", tenant="tenant-a", **clip)
        two = await mesh.batch(b, 1, loss="ppo", tenant="tenant-b", **dict(reversed(clip.items())))
        other = await mesh.batch(c, 1, loss="ppo", tenant="tenant-c", clip_low_threshold=0.7, clip_high_threshold=1.2)
        forward = await mesh.batch(a, 2, loss="ppo", tenant="tenant-a", backward=False, **clip)
    for request in (one, two, other, forward):
        await mesh.done(request)
    assert packs(mesh) == [{one, two}, {other}, {forward}]


async def test_each_pass_names_the_loss_of_its_commands_LOSS_13(mesh: Mesh) -> None:
    (model, _, _) = await three(mesh)
    losses = ["ppo", "cross_entropy", "ppo", "dro"]
    requests = [await mesh.batch(model, seq, loss=loss, tenant="tenant-a") for seq, loss in enumerate(losses, start=1)]
    for request in requests:
        await mesh.done(request)
    ran = {request: entry["loss"] for entry in mesh.passes() for request, _ in entry["datums"]}
    assert [ran[request] for request in requests] == losses


async def test_compatible_work_overtakes_others_but_no_barrier_of_its_model_PACK_04(mesh: Mesh) -> None:
    a, b, c = await three(mesh)
    async with held(mesh):
        first = await mesh.batch(a, 1, tenant="tenant-a")
        second = await mesh.batch(b, 1, loss="ppo", tenant="tenant-b")
        third = await mesh.batch(c, 1, tenant="tenant-c")
        await mesh.step(a, 2, tenant="tenant-a")
        behind = await mesh.batch(a, 3, tenant="tenant-a")
    for request in (first, second, third, behind):
        await mesh.done(request)
    assert packs(mesh)[0] == {first, third}
    assert mesh.kinds()[-1] == "pass"
    assert packs(mesh)[-1] == {behind}


async def test_steps_of_different_models_merge_and_saves_run_singly_PACK_05(mesh: Mesh) -> None:
    a, b, c = await three(mesh)
    async with held(mesh):
        steps = [await mesh.step(model, 1, tenant=f"tenant-{name}") for name, model in (("a", a), ("b", b))]
        save = await mesh.command(c, 1, tenant="tenant-c", save_weights={})
    for request in (*steps, save):
        await mesh.done(request)
    assert mesh.kinds()[-2:] == ["optim", "save"]
    assert mesh.trainer.journal.entries[-2]["requests"] == steps


async def test_items_reach_the_trainer_slot_by_slot_PACK_08(mesh: Mesh) -> None:
    a, b, c = await three(mesh)
    async with held(mesh):
        requests = [
            await mesh.batch(c, 1, tenant="tenant-c"),
            await mesh.batch(a, 1, tenant="tenant-a"),
            await mesh.batch(c, 2, tenant="tenant-c"),
            await mesh.batch(b, 1, tenant="tenant-b"),
        ]
    for request in requests:
        await mesh.done(request)
    order = [request for request, _ in mesh.passes()[-1]["datums"]]
    assert order == [requests[1], requests[3], requests[0], requests[2]]


async def test_a_flood_delays_another_tenant_by_two_units_at_most_PACK_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: object
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=8) as mesh:  # type: ignore[arg-type]
        flooding, quiet, _ = await three(mesh)
        async with held(mesh):
            for seq in range(1, 21):
                last = await mesh.batch(flooding, seq, [3, 3], tenant="tenant-a")
            lone = await mesh.batch(quiet, 1, [3], tenant="tenant-b")
        await mesh.done(lone)
        await mesh.done(last)
        assert any(lone in pack for pack in packs(mesh)[:2])


async def test_with_fairness_off_arrival_alone_decides_PACK_09(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: object
) -> None:
    async with running_mesh(valkey.url, tmp_path, unit_tokens=8, fair=False) as mesh:  # type: ignore[arg-type]
        flooding, quiet, _ = await three(mesh)
        async with held(mesh):
            for seq in range(1, 6):
                await mesh.batch(flooding, seq, [3, 3], tenant="tenant-a")
            lone = await mesh.batch(quiet, 1, [3], tenant="tenant-b")
        await mesh.done(lone)
        assert lone in packs(mesh)[-1]
