"""What the recovery tests share: scripted jobs, deaths of the trainer, and what a model holds in the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tinkermesh.v1 import types_pb2 as types

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from services.scheduler.store import keys
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh
from tests.doubles.fake_trainer import POOL, FakeTrainer
from tests.doubles.published import read_state


async def rounds(mesh: Mesh, model: str, numbers: Sequence[int]) -> None:
    """Round n is a forward_backward of two datums (seq 2n - 1) and a step (seq 2n), awaited."""
    for number in numbers:
        await mesh.done(await mesh.batch(model, 2 * number - 1, [3, 4], salt=number))
        await mesh.done(await mesh.step(model, 2 * number))


async def final_state(mesh: Mesh, model: str, seq: int) -> dict[str, Any]:
    """Weights and moments as a checkpoint saved now holds them."""
    path = (await mesh.done(await mesh.save(model, seq, f"final-{seq}"))).save.path
    return read_state(mesh.root, public_directory(parse_tinker_path(path)))


async def undisturbed(mesh: Mesh, numbers: Sequence[int]) -> dict[str, Any]:
    """What a model of its own comes to by the same rounds: models of equal seeds are equal."""
    model = await mesh.opened(new_session())
    await rounds(mesh, model, numbers)
    return await final_state(mesh, model, 2 * numbers[-1] + 1)


async def kill_trainer(mesh: Mesh) -> FakeTrainer:
    """The trainer dies as it stands, a new incarnation registers; answers the dead one."""
    old = mesh.trainer
    await mesh.replace_trainer()
    return old


async def busy(mesh: Mesh) -> bool:
    return bool(mesh.trainer.book.running_unit)


async def fields(mesh: Mesh, model: str, *names: str) -> list[str]:
    found = await cast("Any", mesh.redis.hmget(keys.model(POOL, model), names))
    return [(value or b"").decode() for value in found]


async def phase(mesh: Mesh, model: str) -> str:
    return (await fields(mesh, model, "phase"))[0]


async def live(mesh: Mesh, *models: str) -> None:
    """Until every one of them is seated, its log applied."""

    async def all_live() -> bool:
        adopted = await cast("Any", mesh.redis.hget(keys.cell(POOL), "incarnation"))
        if adopted != mesh.trainer.incarnation.encode():
            return False
        return [await phase(mesh, model) for model in models] == ["live"] * len(models)

    await mesh.until(all_live)


async def log_length(mesh: Mesh, model: str) -> int:
    return int(await cast("Any", mesh.redis.llen(keys.log(POOL, model))))


async def counter(mesh: Mesh, name: str) -> int:
    return int(await cast("Any", mesh.redis.hget(keys.counters(POOL), name)) or 0)


def replays(trainer: FakeTrainer, kind: str = "pass") -> list[dict[str, Any]]:
    return [entry for entry in trainer.journal.entries if entry["kind"] == kind and entry.get("replay")]


def server_failure(result: types.Failure) -> str:
    assert result.category == types.FAILURE_CATEGORY_SERVER, result
    return result.message


async def next_trainer(mesh: Mesh, *faults: tuple[str, str], **options: Any) -> None:
    """The trainer dies; the next one has `faults` (action, kind) from its start, for ever."""
    await mesh.trainer.stop()
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    for action, kind in faults:
        mesh.trainer.faults.add(action, kind, times=0, **options)
    await mesh.start_trainer()


async def no_trainer(mesh: Mesh) -> None:
    """The trainer is dead and nobody has registered since."""
    await mesh.trainer.stop()
    mesh.directory.registration = None


async def back(mesh: Mesh) -> None:
    mesh.trainer = FakeTrainer(mesh.root, facts=mesh.facts)
    await mesh.start_trainer()


async def all_free(mesh: Mesh) -> None:
    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)


async def settled_durables(mesh: Mesh) -> None:
    async def quiet() -> bool:
        return not await cast("Any", mesh.redis.hlen(keys.durables_running(POOL)))

    await mesh.until(quiet)
