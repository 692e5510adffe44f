"""kill -9 of Redis again and again under load: what was answered is there, unless the mode says otherwise."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from services.local.settings import Durability
from tests.doubles.eventually import eventually
from tests.doubles.mesh import MeshProcesses
from tests.doubles.power_loss import PowerLoss, compiler
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.acknowledged import Answered, Load, check_effects, forgotten, unknown
from tests.mesh.main_path import accepted, adam, created, done

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
whole = pytest.mark.skipif(
    not os.environ.get("TINKERMESH_TEST_WHOLE_REDIS"), reason="runs with TINKERMESH_TEST_WHOLE_REDIS=1 (make redis)"
)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="a C compiler makes the library that records syncs")

MODELS = 3
EVERYSEC_SECONDS = 2.0  # docs/recovery.md, with what a poll of the clock may add
CLOCK_SECONDS = 0.2


class Storm(NamedTuple):
    answered: list[Answered]
    lost: list[Answered]
    kills: list[float]  # unix seconds
    refused: int


# So that a test need not wait as long as a client would.
IMPATIENT = {"TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "2", "TINKERMESH_GATEWAY_RETRY_SECONDS": "2"}


@contextmanager
def running(
    directory: Path, durability: Durability, variables: dict[str, str] | None = None
) -> Iterator[MeshProcesses]:
    with MeshProcesses(directory / "mesh", schedulers=2, durability=durability, variables=variables or {}) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def strict_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    with running(tmp_path_factory.mktemp("strict"), "strict", IMPATIENT) as mesh:
        yield mesh


async def storm(mesh: MeshProcesses, kills: int, seed: int) -> Storm:
    """Kills Redis at random moments under load, then asks for everything that was answered."""
    client = WireClient([mesh.base_url], mesh.api_key)
    load, moments, random_ = Load(client), [], random.Random(seed)
    models = await load.models(MODELS)
    tasks = [asyncio.create_task(load.drive(model)) for model in models]
    before = mesh.restarts("redis")
    for number in range(before + 1, before + kills + 1):
        await asyncio.sleep(random_.uniform(0.3, 1.5))
        await asyncio.to_thread(mesh.kill, "redis")
        moments.append(time.time())
        await asyncio.to_thread(mesh.wait_restarted, "redis", number)
    await asyncio.sleep(0.5)
    load.stopping.set()
    await asyncio.gather(*tasks)
    lost = await forgotten(client, load.answered)
    await client.close()
    print(f"seed {seed}: {len(load.answered)} answered, {len(lost)} lost, {load.refused} sent again, {kills} kills")
    return Storm(load.answered, lost, moments, load.refused)


def run_storm(mesh: MeshProcesses, kills: int, seed: int) -> Storm:
    return asyncio.run(storm(mesh, kills, seed))


def before_a_kill(storm: Storm, one: Answered) -> bool:
    return any(0 <= kill - one.at <= EVERYSEC_SECONDS + CLOCK_SECONDS for kill in storm.kills)


def test_strict_loses_nothing_that_was_answered_GAP_16(strict_mesh: MeshProcesses) -> None:
    seen = run_storm(strict_mesh, kills=4, seed=1)
    assert seen.lost == []
    assert len(seen.answered) > 30
    check_effects(strict_mesh, seen.answered)
    assert [strict_mesh.restarts(name) for name in strict_mesh.names("scheduler")] == [0, 0]


def test_while_redis_is_away_nothing_is_accepted_and_afterwards_all_goes_on_by_itself_LEASE_04(
    strict_mesh: MeshProcesses,
) -> None:
    mesh = strict_mesh
    restarts = {name: mesh.restarts(name) for name in mesh.names("")}
    mesh.inject("trainer", [{"kind": "pass", "action": "delay_before", "seconds": 1.0, "times": 0}])
    asyncio.run(away(mesh))
    mesh.inject("trainer", [])
    assert {name: mesh.restarts(name) for name in mesh.names("")} == restarts


async def away(mesh: MeshProcesses) -> None:
    """Stopped, Redis keeps its connections and answers nothing: the worst way to be away."""
    client = WireClient([mesh.base_url], mesh.api_key)
    session = await client.session()
    model = await created(client, session)
    pending = (await accepted(client, "/forward_backward", batch(model, 1, seed=1)))["request_id"]
    await asyncio.to_thread(mesh.kill, "redis", signal.SIGSTOP)
    try:
        answers = await asyncio.gather(
            client.post("/optim_step", adam(model, 2)),
            client.post("/session_heartbeat", {"session_id": session}),
            client.post("/retrieve_future", {"request_id": pending}),
        )
    finally:
        await asyncio.to_thread(mesh.kill, "redis", signal.SIGCONT)
    assert [answer.status_code for answer in answers] == [503, 503, 408], [answer.text for answer in answers]
    await eventually_beats(client, session)
    assert "error" not in await client.future(pending)
    await done(client, "/optim_step", adam(model, 2))
    await client.close()


async def eventually_beats(client: WireClient, session: str) -> None:
    async def beats() -> bool:
        return (await client.post("/session_heartbeat", {"session_id": session})).status_code == 200

    await eventually(beats, 30.0)


def test_without_a_file_the_loss_is_noticed(tmp_path: Path) -> None:
    """Negative control of the check above."""
    with running(tmp_path, "off") as mesh:
        seen = run_storm(mesh, kills=1, seed=1)
        assert len(seen.lost) >= MODELS


@whole
@pytest.mark.parametrize("seed", range(3))
def test_everysec_loses_at_most_the_last_two_seconds_before_a_kill(tmp_path: Path, seed: int) -> None:
    with running(tmp_path, "everysec") as mesh:
        seen = run_storm(mesh, kills=4, seed=seed)
        assert all(before_a_kill(seen, one) for one in seen.lost)
        if not seen.lost:  # otherwise what Redis forgot to have run may have run again
            check_effects(mesh, seen.answered)


@whole
@needs_compiler
@pytest.mark.parametrize("seed", range(3))
def test_strict_loses_nothing_at_a_power_loss(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    power = PowerLoss(tmp_path)
    monkeypatch.setenv("TINKERMESH_VALKEY", str(power.binary))
    with running(tmp_path, "strict") as mesh:
        seen = run_storm(mesh, kills=4, seed=seed)
        assert len(power.lost_bytes()) == 4
        assert seen.lost == []
        check_effects(mesh, seen.answered)


@whole
@needs_compiler
def test_everysec_loses_at_a_power_loss_what_it_says_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the one above: without the syncs something is lost."""
    power = PowerLoss(tmp_path)
    monkeypatch.setenv("TINKERMESH_VALKEY", str(power.binary))
    with running(tmp_path, "everysec", IMPATIENT) as mesh:
        killed, lost = asyncio.run(one_power_loss(mesh))
        assert sum(power.lost_bytes()) > 0
        assert lost
        assert all(killed - one.at <= EVERYSEC_SECONDS + CLOCK_SECONDS for one in lost)


async def one_power_loss(mesh: MeshProcesses) -> tuple[float, list[Answered]]:
    """When it was (unix seconds), and what was unknown afterwards."""
    client = WireClient([mesh.base_url], mesh.api_key)
    load = Load(client)
    tasks = [asyncio.create_task(load.drive(model)) for model in await load.models(MODELS)]
    await asyncio.sleep(3.0)
    await asyncio.to_thread(mesh.kill, "redis")
    killed = time.time()
    load.stopping.set()
    await asyncio.to_thread(mesh.wait_restarted, "redis", 1)
    await asyncio.gather(*tasks)
    before = [one for one in load.answered if one.at < killed]
    lost = await unknown(client, before)
    await client.close()
    print(f"{len(before)} answered before the power loss, {len(lost)} lost")
    return killed, lost
