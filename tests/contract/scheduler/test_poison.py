"""A command that stops the trainer twice is not tried a third time, and takes nobody along (MESH-04, MESH-05)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import ModelClosed
from services.scheduler.store import keys
from tests.contract.scheduler.recovering import counter, final_state, kill_trainer, rounds, server_failure, undisturbed
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh
from tests.doubles.fake_trainer import POOL, FakeTrainer

POISON = 66


async def dies_of_poison(mesh: Mesh) -> FakeTrainer:
    """The trainer that is running now stops in a pass that holds the poison; the next one is as vulnerable."""
    mesh.trainer.faults.add("hold_before", "pass", times=0, length=POISON)
    await holding(mesh)
    return await kill_trainer(mesh)


async def holding(mesh: Mesh) -> None:
    """Until a unit has come that one of the trainer's rules holds."""
    await mesh.until(lambda: any(rule.seen for rule in mesh.trainer.faults.rules))


async def test_two_deaths_fail_the_command_and_close_its_model_only_MESH_04(mesh: Mesh) -> None:
    good, bad = await mesh.opened(new_session()), await mesh.opened(new_session())
    await rounds(mesh, good, [1])
    path = (await mesh.done(await mesh.save(bad, 1, "kept"))).save.path
    mesh.trainer.faults.add("hold_before", "pass", times=0, length=POISON)
    poison = await mesh.batch(bad, 2, [POISON])
    behind = await mesh.step(bad, 3)
    other = await mesh.batch(good, 3, [3, 4], salt=2)
    for _ in range(2):
        await dies_of_poison(mesh)
    message = server_failure(await mesh.failed(poison))
    text = "forward_backward stopped the trainer 2 times and is not run again; create a new model and restore from "
    assert message == text + path
    assert "stopped the trainer" in server_failure(await mesh.failed(behind))
    with pytest.raises(ModelClosed, match="restore from"):
        await mesh.batch(bad, 4)
    await mesh.done(other)
    await mesh.done(await mesh.step(good, 4))
    assert await final_state(mesh, good, 5) == await undisturbed(mesh, [1, 2])


async def not_run(mesh: Mesh) -> bool:
    """A unit is known to have been refused by the trainer of now."""
    units = await cast("Any", mesh.redis.smembers(keys.running_units(POOL)))
    rows = [
        await cast("Any", mesh.redis.hmget(keys.unit(POOL, unit.decode()), ("incarnation", "not_run")))
        for unit in units
    ]
    return [mesh.trainer.incarnation.encode(), b"1"] in rows


REFUSED: dict[str, Callable[[pb.Unit], bool]] = {
    "batch": lambda unit: unit.HasField("pass") and not unit.replay,
    "seat": lambda unit: unit.HasField("init"),
    "replay": lambda unit: unit.replay and unit.HasField("pass"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_trainers_refuse_because_they_end_in_order_is_no_poison_MESH_04(mesh: Mesh, kind: str) -> None:
    """However often a pool's trainers are restarted while they are given the same unit."""
    model = await mesh.opened(new_session())
    await rounds(mesh, model, [1])
    await mesh.trainer.stop()
    pending = await mesh.batch(model, 3, [3, 4], salt=2)
    for _ in range(3):
        mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
        mesh.trainer.refuses = REFUSED[kind]
        await mesh.start_trainer()
        await mesh.until(lambda: not_run(mesh))
        await mesh.trainer.stop()
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    await mesh.start_trainer()
    await mesh.done(pending)
    await mesh.done(await mesh.step(model, 4))
    assert await counter(mesh, "poisoned_total") == 0
    assert await final_state(mesh, model, 5) == await undisturbed(mesh, [1, 2])


async def test_a_create_that_trainers_refuse_because_they_end_in_order_is_no_poison_MESH_04(mesh: Mesh) -> None:
    for number in range(3):
        mesh.trainer.refuses = REFUSED["seat"]
        if number == 0:
            pending = await mesh.create(new_session())
        await mesh.until(lambda: not_run(mesh))
        await mesh.trainer.stop()
        mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
        mesh.trainer.refuses = REFUSED["seat"] if number < 2 else lambda unit: False
        await mesh.start_trainer()
    await mesh.done(pending)
    assert await counter(mesh, "poisoned_total") == 0


async def test_a_create_that_stops_the_trainer_twice_fails_MESH_04(mesh: Mesh) -> None:
    mesh.trainer.faults.add("hold_before", "init", times=0)
    create = await mesh.create(new_session())
    for _ in range(2):
        await holding(mesh)
        await kill_trainer(mesh)
        mesh.trainer.faults.add("hold_before", "init", times=0)
    assert "stopped the trainer 2 times" in server_failure(await mesh.failed(create))
    mesh.trainer.faults.rules.clear()
    await mesh.opened(new_session())


async def test_two_deaths_in_a_replay_close_the_model_naming_the_way_back_MESH_05(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1, "kept"))).save.path
    await mesh.done(await mesh.batch(model, 2, [POISON]))
    mesh.directory.registration = None
    step = await mesh.step(model, 3)
    for _ in range(3):
        await mesh.trainer.stop()
        mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
        mesh.trainer.faults.add("hold_before", "pass", times=0, length=POISON)
        await mesh.start_trainer()
        if await mesh.state(step) == "failed":
            break
        await next_step(mesh, step)
    message = server_failure(await mesh.failed(step))
    assert "the trainer stopped 2 times while this model was being restored" in message and message.endswith(path)


async def next_step(mesh: Mesh, request: str) -> None:
    """Until the replay stands in the poison, or the model is closed."""

    async def there() -> bool:
        return (
            bool(mesh.trainer.book.running_unit) and mesh.kinds() == ["init"] or await mesh.state(request) == "failed"
        )

    await mesh.until(there)
