"""How far a failure reaches, and what becomes of the slot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import trainer_pb2

from services.common.errors import ModelClosed, TooLarge
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.valkey import ValkeyProcess

RESTORE = "create a new model and restore from a checkpoint"


async def test_a_failed_forward_ends_only_its_own_request_FAIL_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "pass")
    failure = await mesh.failed(await mesh.batch(model, 1, backward=False))
    assert "injected" in failure.message
    await mesh.done(await mesh.batch(model, 2))


@pytest.mark.parametrize("op", ["batch", "step"])
async def test_a_failed_forward_backward_or_step_closes_its_model_FAIL_01(mesh: Mesh, op: str) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "pass" if op == "batch" else "optim")
    await mesh.failed(await getattr(mesh, op)(model, 1))
    with pytest.raises(ModelClosed, match=RESTORE):
        await mesh.batch(model, 2)


async def test_a_failed_save_leaves_the_model_open_FAIL_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "save")
    assert (await mesh.failed(await mesh.save(model, 1))).category == 2
    await mesh.done(await mesh.save(model, 2))


async def test_a_load_that_touched_nothing_leaves_the_model_open_FAIL_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1))).save.path
    mesh.trainer.faults.add("fail", "load")
    await mesh.failed(await mesh.command(model, 2, load_weights={"path": path}))
    await mesh.done(await mesh.command(model, 3, load_weights={"path": path}))


async def test_a_load_that_began_to_assign_closes_the_model_FAIL_01(mesh: Mesh, monkeypatch: Any) -> None:
    model = await mesh.opened(new_session())
    path = (await mesh.done(await mesh.save(model, 1))).save.path
    effect = mesh.trainer.runner._effect

    def half(unit: trainer_pb2.Unit, payload: bytes, kind: str, due: Any) -> Any:
        outcome, scores = effect(unit, payload, kind, due)
        if kind == "load":
            outcome.slots[0].failure.message, outcome.slots[0].assignment_began = "disk vanished", True
        return outcome, scores

    monkeypatch.setattr(type(mesh.trainer.runner), "_effect", lambda _self, *a: half(*a))
    await mesh.failed(await mesh.command(model, 2, load_weights={"path": path}))
    with pytest.raises(ModelClosed, match="disk vanished"):
        await mesh.batch(model, 3)


async def test_closing_fails_what_waits_and_keeps_what_is_settled_FAIL_02(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    first = await mesh.batch(model, 1)
    await mesh.done(first)
    mesh.trainer.faults.add("fail", "pass")
    async with held_pass(mesh):
        doomed = await mesh.batch(model, 2)
        step, gapped = await mesh.step(model, 3), await mesh.batch(model, 5)
    for request in (doomed, step, gapped):
        await mesh.failed(request)
    assert RESTORE in (await mesh.failed(step)).message
    assert RESTORE in (await mesh.failed(gapped)).message
    await mesh.done(first)

    async def free() -> bool:
        return set((await mesh.slots()).values()) == {""}

    await mesh.until(free)


def held_pass(mesh: Mesh) -> Any:
    return held_units(mesh, "pass")


class held_units:  # noqa: N801 - reads as a verb
    """Units of one kind wait until the block ends."""

    def __init__(self, mesh: Mesh, kind: str) -> None:
        self._faults, self._kind = mesh.trainer.faults, kind

    async def __aenter__(self) -> None:
        self._rule = self._faults.add("hold_before", self._kind, times=0)

    async def __aexit__(self, *_: object) -> None:
        self._faults.remove(self._rule)


async def test_a_closed_model_names_its_reason_FAIL_03(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    mesh.trainer.faults.add("fail", "optim")
    await mesh.failed(await mesh.step(model, 1))
    with pytest.raises(ModelClosed, match="optim_step failed: injected failure"):
        await mesh.step(model, 2)


async def test_a_slot_that_cannot_be_unloaded_is_not_used_again_until_repaired_FAIL_04_FAIL_05_GAP_14(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1) as mesh:
        model = await mesh.opened(new_session())
        mesh.trainer.faults.add("fail", "unload", times=2)
        failure = await mesh.failed(await mesh.unload(model))
        assert "stays out of use until repaired" in failure.message
        waiting = await mesh.create(new_session())
        await asyncio.sleep(0.3)
        assert await mesh.state(waiting) == "queued"
        assert await mesh.slots() == {0: f"quarantine:{model}"}
        store = mesh.replicas[0].training._driver._parts.store
        await store.repair("double", 1)  # what the sweeper does every half minute: fails once more
        mesh.replicas[0].training._driver.wake("double")
        await mesh.until(lambda: tried(mesh, 2))
        await store.repair("double", 1)
        mesh.replicas[0].training._driver.wake("double")
        await mesh.done(waiting)


async def tried(mesh: Mesh, times: int) -> bool:
    rule = next(rule for rule in mesh.trainer.faults.rules if rule.kind == "unload")
    return rule.seen >= times and (await mesh.slots())[0].startswith("quarantine")


async def test_a_create_that_never_reached_the_trainer_leaves_no_trace_FAIL_06(
    valkey: ValkeyProcess, redis_client: Redis, tmp_path: Path
) -> None:
    async with running_mesh(valkey.url, tmp_path, slots=1) as mesh:
        first, session = await mesh.opened(new_session()), new_session()
        waiting = await mesh.create(session)
        book = mesh.replicas[0].training.models
        await book.close_session("double", session, "lease expired", settle_accepted=False)
        assert (await mesh.failed(waiting)).message == "lease expired"
        await mesh.done(await mesh.unload(first))
        assert mesh.kinds() == ["init", "unload"]


async def test_an_outcome_for_the_wrong_slots_settles_nothing_as_success_FAIL_08(mesh: Mesh, monkeypatch: Any) -> None:
    models = [await mesh.opened(new_session()) for _ in range(2)]
    broken(mesh, monkeypatch, "optim", lambda outcome: outcome.slots.pop())
    async with held(mesh):
        steps = [await mesh.step(model, 1) for model in models]
    for step in steps:
        assert "broke its contract" in (await mesh.failed(step)).message
    await mesh.opened(new_session())


async def test_metrics_that_are_not_finite_settle_nothing_as_success_FAIL_08(mesh: Mesh, monkeypatch: Any) -> None:
    model = await mesh.opened(new_session())
    broken(mesh, monkeypatch, "optim", lambda outcome: outcome.slots[0].metrics.update({"grad_norm": float("nan")}))
    assert "not finite" in (await mesh.failed(await mesh.step(model, 1))).message


@pytest.mark.parametrize("what", ["datum", "bytes"])
async def test_a_pass_outcome_of_the_wrong_size_settles_nothing_as_success_FAIL_09(
    mesh: Mesh, monkeypatch: Any, what: str
) -> None:
    model = await mesh.opened(new_session())
    if what == "datum":
        broken(mesh, monkeypatch, "pass", lambda outcome: getattr(outcome, "pass").datums.pop())
    else:
        effect = mesh.trainer.runner._effect
        monkeypatch.setattr(type(mesh.trainer.runner), "_effect", lambda _self, *a: (effect(*a)[0], effect(*a)[1][:-4]))
    assert "broke its contract" in (await mesh.failed(await mesh.batch(model, 1, [3, 4]))).message


def broken(mesh: Mesh, monkeypatch: Any, kind: str, change: Any) -> None:
    """Outcomes of one kind of unit leave the trainer changed."""
    effect = mesh.trainer.runner._effect

    def wrapped(unit: trainer_pb2.Unit, payload: bytes, of: str, due: Any) -> Any:
        outcome, scores = effect(unit, payload, of, due)
        if of == kind:
            change(outcome)
        return outcome, scores

    monkeypatch.setattr(type(mesh.trainer.runner), "_effect", lambda _self, *a: wrapped(*a))


async def test_one_slots_failed_step_closes_only_its_model_FAIL_10(mesh: Mesh, monkeypatch: Any) -> None:
    good, bad = [await mesh.opened(new_session()) for _ in range(2)]

    def fail_second(outcome: trainer_pb2.UnitOutcome) -> None:
        outcome.slots[1].failure.message = "allreduce died"

    broken(mesh, monkeypatch, "optim", fail_second)
    async with held(mesh):
        steps = [await mesh.step(good, 1), await mesh.step(bad, 1)]
    assert "grad_norm" in (await mesh.done(steps[0])).optim_step.metrics
    assert "allreduce died" in (await mesh.failed(steps[1])).message
    with pytest.raises(ModelClosed, match="allreduce died"):
        await mesh.batch(bad, 2)
    await mesh.done(await mesh.batch(good, 2))


async def test_a_datum_the_trainer_blames_on_itself_fails_its_request_and_closes_the_model(mesh: Mesh) -> None:
    model, other = [await mesh.opened(new_session()) for _ in range(2)]
    async with held(mesh):
        mesh.trainer.faults.add("fail_datum", "pass", datum=1)
        bad, good = await mesh.batch(model, 1, [2, 3]), await mesh.batch(other, 1)
    assert (await mesh.failed(bad)).message == "datum 1: injected failure of a datum"
    await mesh.done(good)
    with pytest.raises(ModelClosed):
        await mesh.batch(model, 2)


async def test_a_datums_own_fault_leaves_its_model_open_and_is_counted(mesh: Mesh, monkeypatch: Any) -> None:
    model = await mesh.opened(new_session())

    def blame(outcome: trainer_pb2.UnitOutcome) -> None:
        datum = getattr(outcome, "pass").datums[0]
        if datum.HasField("failure"):
            datum.failure.category = 1

    broken(mesh, monkeypatch, "pass", blame)
    mesh.trainer.faults.add("fail_datum", "pass", datum=0)
    assert (await mesh.failed(await mesh.batch(model, 1))).category == 1
    step = await mesh.done(await mesh.step(model, 2))
    assert step.optim_step.metrics["window_rejected_requests"] == 1


async def test_a_trainer_that_breaks_on_one_unit_fails_that_unit_and_serves_on_FAIL_08(
    mesh: Mesh, monkeypatch: Any
) -> None:
    first, second = await mesh.opened(new_session()), await mesh.opened(new_session())

    async def broken(*_: object) -> Any:
        raise RuntimeError("a bug of the trainer")

    with monkeypatch.context() as patched:
        patched.setattr(type(mesh.trainer.book), "outcome", broken)
        failure = await mesh.failed(await mesh.batch(first, 1))
    assert failure.category == 2
    assert "trainer broke its contract" in failure.message
    with pytest.raises(ModelClosed, match=RESTORE):
        await mesh.batch(first, 2)
    await mesh.done(await mesh.batch(second, 1))


async def test_a_unit_the_trainer_refuses_fails_by_itself_FAIL_01(mesh: Mesh, monkeypatch: Any) -> None:
    model = await mesh.opened(new_session())

    def refused(*_: object) -> Any:
        raise TooLarge("unit has 9 payload bytes, this trainer takes 8")

    with monkeypatch.context() as patched:
        patched.setattr(type(mesh.trainer.book), "start", refused)
        failure = await mesh.failed(await mesh.batch(model, 1, backward=False))
    assert "trainer refused the unit: unit has 9 payload bytes" in failure.message
    await mesh.done(await mesh.batch(model, 2))
