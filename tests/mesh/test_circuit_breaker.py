"""FAIL-16 from a client's side, under the product's own supervisor: a trainer that fails everything is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from services.scheduler.core.breaker import TRIPS
from tests.doubles.admin import list_pools, recovery
from tests.doubles.eventually import eventually
from tests.doubles.mesh import MeshProcesses
from tests.doubles.published import read_state
from tests.doubles.wire_client import Json, WireClient, batch
from tests.mesh.main_path import accepted, adam, created, done, outcome, saved

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
SECONDS = 60.0
FAILS: Json = {"kind": "pass", "action": "fail", "times": 0}
NOT_BACK_YET: Json = {"kind": "init", "action": "hold_before", "times": 0}
"""A restarted trainer gets its models back by this first."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    variables = {"TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "0.5"}
    options = ["--slots", "32"]
    directory = tmp_path_factory.mktemp("breaker")
    with MeshProcesses(directory, schedulers=2, variables=variables, trainer_options=options) as running:
        yield running


class Broken(NamedTuple):
    """A mesh whose breaker has opened. `waiting`: a forward_backward of each spared model."""

    spared: list[str]
    waiting: list[str]


async def broken(mesh: MeshProcesses, client: WireClient, faults: list[Json], spare: int) -> Broken:
    """`TRIPS` models lose a command and end; the spared ones have trained a step, and send more behind that."""
    session = await client.session()
    models = [await created(client, session, number) for number in range(TRIPS + spare)]
    for model in models[TRIPS:]:
        await done(client, "/forward_backward", batch(model, 1, seed=1))
        await done(client, "/optim_step", adam(model, 2))
    restarts = mesh.restarts("trainer")
    mesh.inject("trainer", faults)
    for model in models[:TRIPS]:
        failed = await outcome(client, "/forward_backward", batch(model, 1, seed=1))
        assert failed["category"] == "server", failed
        assert "injected failure" in failed["error"], failed
    await eventually(lambda: mesh.restarts("trainer") > restarts, SECONDS)
    spared = models[TRIPS:]
    waiting = [(await accepted(client, "/forward_backward", batch(m, 3, seed=2)))["request_id"] for m in spared]
    return Broken(spared, waiting)


def breaker(mesh: MeshProcesses) -> str:
    return next(pool.breaker for pool in list_pools(mesh.scheduler))


async def state_after(mesh: MeshProcesses, client: WireClient, model: str) -> dict[str, Any]:
    """Weights and moments once the step behind the waiting command is made."""
    stepped = await done(client, "/optim_step", adam(model, 4))
    assert stepped["metrics"]["window_datums"] == 3
    path = await saved(client, model, 5, "after")
    return read_state(mesh.settings.store, public_directory(parse_tinker_path(path)))


async def undisturbed(mesh: MeshProcesses, client: WireClient) -> dict[str, Any]:
    """The same commands on a model of its own, afterwards."""
    model = await created(client, await client.session())
    await done(client, "/forward_backward", batch(model, 1, seed=1))
    await done(client, "/optim_step", adam(model, 2))
    await done(client, "/forward_backward", batch(model, 3, seed=2))
    return await state_after(mesh, client, model)


async def assert_nothing_lost(mesh: MeshProcesses, client: WireClient, seen: Broken) -> None:
    for request in seen.waiting:
        assert "error" not in await client.future(request)
    await eventually(lambda: breaker(mesh) == "", SECONDS)
    states = [await state_after(mesh, client, model) for model in seen.spared]
    assert states == [await undisturbed(mesh, client)] * len(states)
    assert recovery(mesh.scheduler).replay_mismatches_total == 0


async def opens_and_closes(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    seen = await broken(mesh, client, [FAILS, NOT_BACK_YET], spare=2)
    for request in seen.waiting:
        answer = await client.post("/retrieve_future", {"request_id": request})
        told = answer.json()
        assert (answer.status_code, told["queue_state"]) == (408, "paused_capacity"), answer.text
        assert told["queue_state_reason"].startswith(f"circuit breaker: {TRIPS} units in a row failed"), told
        assert "injected failure" in told["queue_state_reason"]
    assert "injected failure" in breaker(mesh)
    assert (await client.post("/session_heartbeat", {"session_id": await client.session()})).status_code == 200
    mesh.inject("trainer", [])
    await assert_nothing_lost(mesh, client, seen)
    await client.close()


async def opens_again_until_a_life_goes_well(mesh: MeshProcesses) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    restarts = mesh.restarts("trainer")
    seen = await broken(mesh, client, [FAILS], spare=TRIPS)  # enough for their replay to trip it again
    await eventually(lambda: mesh.restarts("trainer") >= restarts + 2, SECONDS)  # its replay failed all the same
    mesh.inject("trainer", [])
    await assert_nothing_lost(mesh, client, seen)
    await client.close()


def test_a_trainer_that_fails_everything_is_restarted_and_what_waits_is_told_why_FAIL_16(mesh: MeshProcesses) -> None:
    restarts = mesh.restarts("trainer")
    asyncio.run(opens_and_closes(mesh))
    assert mesh.restarts("trainer") == restarts + 1


def test_a_next_life_that_fails_too_costs_no_model_FAIL_16_GAP_02(mesh: MeshProcesses) -> None:
    asyncio.run(opens_again_until_a_life_goes_well(mesh))
    others = [name for name in mesh.names("") if name != "trainer"]
    assert {name: mesh.restarts(name) for name in others} == dict.fromkeys(others, 0)
