"""FAIL-13: one datum that makes a shared pass fail costs its own request, nobody else's, and few passes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.common.errors import ModelClosed
from tests.contract.scheduler.poison import Contents, Poison, poisoned
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh, running_mesh
from tests.contract.scheduler.test_training_packing import held
from tests.doubles.valkey import ValkeyProcess

TENANTS = 6
DATUMS = 4
PLACES = {True: (0, 1, 2, 3, 6, 10, 14, 18, 23), False: range(TENANTS * DATUMS)}
"""A request of four is one place."""
BOUND = 2 * math.ceil(math.log2(TENANTS * DATUMS)) + 1


@pytest.fixture
async def mesh(valkey: ValkeyProcess, redis_client: object, tmp_path: Path) -> AsyncIterator[Mesh]:
    async with running_mesh(valkey.url, tmp_path, slots=64) as running:
        yield running


@dataclass
class Round:
    """Six tenants, 24 datums in one pass: a request of four each (`whole`), or four requests of one."""

    mesh: Mesh
    whole: bool
    models: list[str] = field(default_factory=list)
    requests: list[list[str]] = field(default_factory=list)

    async def open(self) -> None:
        opening = (self.mesh.opened(new_session(), tenant=f"tenant-{n}") for n in range(TENANTS))
        self.models = await asyncio.gather(*opening)

    async def send(self) -> None:
        """All four requests (or one) of a tenant, one tenant after the other."""
        for tenant in range(TENANTS):
            name, model = f"tenant-{tenant}", self.models[tenant]
            if self.whole:
                sent = [await self.mesh.batch(model, 1, [2, 3, 4, 5], tenant=name, salt=tenant)]
            else:
                sent = [await self.mesh.batch(model, 1 + n, [2 + n], tenant=name, salt=tenant) for n in range(DATUMS)]
            self.requests.append(sent)

    def datum(self, position: int) -> tuple[str, int]:
        tenant, number = divmod(position, DATUMS)
        return (self.requests[tenant][0], number) if self.whole else (self.requests[tenant][number], 0)

    async def outcomes(self, tenants: Iterable[int]) -> list[list[object]]:
        return list(await asyncio.gather(*(self.outcome(tenant) for tenant in tenants)))

    async def outcome(self, tenant: int) -> list[object]:
        """Results, the window's residue and its count of datums, and what the next step and forward make of it."""
        name, model = f"tenant-{tenant}", self.models[tenant]
        results = [(await self.mesh.done(request)).batch for request in self.requests[tenant]]
        window = self.window(model, await self.mesh.slots())
        seq = 1 + len(self.requests[tenant])
        step = await self.mesh.done(await self.mesh.step(model, seq, tenant=name))
        after = await self.mesh.done(await self.mesh.batch(model, seq + 1, [7], tenant=name, backward=False))
        numbers: list[object] = [r.SerializeToString(deterministic=True) for r in results]
        return [*numbers, window, dict(step.optim_step.metrics), after.batch.logprobs]

    def window(self, model: str, slots: dict[int, str]) -> tuple[int, int]:
        number = next(slot for slot, holder in slots.items() if holder == model)
        state = self.mesh.trainer.runner.slots[number].held
        assert state is not None
        return state.window, state.window_datums

    async def end(self) -> None:
        for tenant, model in enumerate(self.models):
            await self.mesh.unload(model, tenant=f"tenant-{tenant}")


async def a_round(mesh: Mesh, patch: pytest.MonkeyPatch, poison_at: set[int], *, whole: bool) -> tuple[Round, Poison]:
    ring = Round(mesh, whole)
    await ring.open()
    doomed: set[tuple[str, int]] = set()
    async with held(mesh):
        await ring.send()
        doomed |= {ring.datum(position) for position in poison_at}
        poison = poisoned(mesh, patch, lambda contents: not doomed.isdisjoint(contents))
    for sent in ring.requests:
        for request in sent:
            await mesh.settled(request)
    poison.ran = [ran for ran in poison.ran if not is_blocker(ran, ring)]
    return ring, poison


def is_blocker(ran: Contents, ring: Round) -> bool:
    return not {request for request, _ in ran} & {request for sent in ring.requests for request in sent}


async def undisturbed(mesh: Mesh, patch: pytest.MonkeyPatch, *, whole: bool) -> list[list[object]]:
    ring, poison = await a_round(mesh, patch, set(), whole=whole)
    assert [len(ran) for ran in poison.ran] == [TENANTS * DATUMS]
    outcomes = await ring.outcomes(range(TENANTS))
    await ring.end()
    return outcomes


@pytest.mark.parametrize("whole", [True, False], ids=["6-requests-of-4", "24-requests-of-1"])
async def test_a_poison_datum_at_any_place_harms_no_other_tenant_FAIL_13_GAP_04(mesh: Mesh, whole: bool) -> None:
    """Results, windows and the next step of five tenants are bit by bit those of a pass without it."""
    with pytest.MonkeyPatch.context() as patch:
        expected = await undisturbed(mesh, patch, whole=whole)
    for position in PLACES[whole]:
        with pytest.MonkeyPatch.context() as patch:
            ring, poison = await a_round(mesh, patch, {position}, whole=whole)
            guilty = position // DATUMS
            assert 1 < len(poison.ran) <= 1 + BOUND
            spared = [tenant for tenant in range(TENANTS) if tenant != guilty]
            assert await ring.outcomes(spared) == [expected[tenant] for tenant in spared], position
            failure = await mesh.failed(ring.datum(position)[0])
            assert failure.message == "the pass failed as a whole"
            with pytest.raises(ModelClosed, match="restore from a checkpoint"):
                await mesh.batch(ring.models[guilty], 9, tenant=f"tenant-{guilty}")
            await ring.end()


async def test_two_poisons_of_two_tenants_harm_nobody_else_FAIL_13(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        expected = await undisturbed(mesh, patch, whole=True)
    ring, poison = await a_round(mesh, monkeypatch, {2, 21}, whole=True)
    assert len(poison.ran) <= 1 + 2 * BOUND
    assert await ring.outcomes([1, 2, 3, 4]) == expected[1:5]
    for tenant in (0, 5):
        await mesh.failed(ring.requests[tenant][0])


async def test_what_fails_only_in_company_fails_nobody_FAIL_13(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        expected = await undisturbed(mesh, patch, whole=True)
    ring = Round(mesh, whole=True)
    await ring.open()
    async with held(mesh):
        await ring.send()
        pair = {ring.datum(0), ring.datum(4)}
        poison = poisoned(mesh, monkeypatch, lambda contents: pair <= set(contents))
    assert await ring.outcomes(range(TENANTS)) == expected
    assert len([ran for ran in poison.ran if pair & set(ran)]) <= 1 + BOUND


async def test_a_transient_failure_of_a_shared_pass_is_tried_again_whole_FAIL_13(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        expected = await undisturbed(mesh, patch, whole=True)
    ring = Round(mesh, whole=True)
    await ring.open()
    async with held(mesh):
        await ring.send()
        failed: list[Contents] = []
        poison = poisoned(mesh, monkeypatch, lambda ran: len(ran) == 24 and not failed and not failed.append(ran))  # type: ignore[func-returns-value]
        poison.transient = 2  # the blocker's pass is the first
    assert await ring.outcomes(range(TENANTS)) == expected
    assert [len(ran) for ran in poison.ran].count(TENANTS * DATUMS) == 2


async def test_a_lone_request_survives_one_transient_failure_and_not_two_FAIL_13(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = await mesh.opened(new_session())
    poison = poisoned(mesh, monkeypatch, lambda _: len(poison.ran) in (1, 3, 4), transient=9)
    await mesh.done(await mesh.batch(model, 1))
    assert "memory ran out" in (await mesh.failed(await mesh.batch(model, 2))).message
    assert len(poison.ran) == 4


async def test_the_label_goes_with_the_success_FAIL_13(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a request that did not fit the unit shares passes again once the rest went well."""
    a, b = [await mesh.opened(new_session(), tenant=f"tenant-{name}") for name in "ab"]
    async with held(mesh):
        long = await mesh.batch(a, 1, [2000, 2000, 90], tenant="tenant-a")
        short = await mesh.batch(b, 1, [10], tenant="tenant-b")
        poison = poisoned(mesh, monkeypatch, lambda ran: {(long, 0), (short, 0)} <= set(ran))
        later = await mesh.batch(b, 2, [2000], tenant="tenant-b")
    for request in (long, short, later):
        await mesh.done(request)
    assert {(long, 2), (later, 0)} <= set(poison.ran[-1] + poison.ran[-2])


async def test_merged_optimizer_steps_that_fail_as_a_whole_run_in_halves_FAIL_13_PACK_05(mesh: Mesh) -> None:
    models = [await mesh.opened(new_session(), tenant=f"tenant-{name}") for name in "abc"]
    async with held(mesh):
        mesh.trainer.faults.add("fail", "optim", times=1)
        steps = [await mesh.step(model, 1, tenant=f"tenant-{n}") for n, model in zip("abc", models, strict=True)]
    for step in steps:
        await mesh.done(step)
    merged = [len(entry["slots"]) for entry in mesh.trainer.journal.entries if entry["kind"] == "optim"]
    assert merged == [2, 1]
