"""Parts that stand still turn alerts on: a unit that does not end, a restoring that does not begin, Redis that is away.

Runs with TINKERMESH_TEST_WHOLE_ALERTS=1 (make alerts): two to five minutes. Silent before each fault; the clock of the
rules is hurried, as tests/doubles/prometheus.py says.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from services.local import cli
from tests.doubles.eventually import until
from tests.doubles.mesh import MeshProcesses
from tests.doubles.prometheus import Prometheus, required
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.alerting import FAULT_SECONDS, seen, silent, watched
from tests.mesh.busy import submitted
from tests.mesh.main_path import adam, created, done

pytestmark = [
    pytest.mark.mesh,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("TINKERMESH_TEST_WHOLE_ALERTS"),
        reason="runs with TINKERMESH_TEST_WHOLE_ALERTS=1 (make alerts)",
    ),
]
HELD = ("TinkermeshQueueOld", "TinkermeshQueueOldForHighWeight", "TinkermeshUnitStuck", "TinkermeshDurablePointLag")
REDIS = ("TinkermeshRedisAway", "TinkermeshLeaseLost", "TinkermeshErrorRate", "TinkermeshSlowAnswers")
REFUSED = 20
LEADING = "max(tinkermesh_scheduler_leading)"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """A model that rests is due for a durable point after five seconds."""
    required("prometheus")
    variables = {
        "TINKERMESH_SCHEDULER_DURABLE_IDLE_SECONDS": "5",
        "TINKERMESH_SCHEDULER_TERM_LEASE_SECONDS": "2",
        "TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "1",
    }
    with MeshProcesses(tmp_path_factory.mktemp("pauses"), variables=variables) as running:
        yield running


@pytest.fixture(scope="module")
def server(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with watched(mesh, tmp_path_factory.mktemp("prometheus")) as made:
        yield made


async def stepped(client: WireClient) -> str:
    model = await created(client, await client.session())
    await done(client, "/forward_backward", batch(model, 1, seed=1))
    await done(client, "/optim_step", adam(model, 2))
    return model


async def test_a_unit_that_does_not_end_is_told_and_so_is_what_waits_behind_it(
    mesh: MeshProcesses, server: Prometheus
) -> None:
    """Another tenant's commands, one with extra weight, and the durable point of a model that rests."""
    key = "tml-heavy"
    heavy = mesh.add_key(key)
    change = ["tenants", "set", heavy, "--weight", "2", "--state-dir", str(mesh.settings.state_dir)]
    assert CliRunner().invoke(cli.app, change).exit_code == 0
    ours, theirs = WireClient([mesh.base_url], mesh.api_key), WireClient([mesh.base_url], key)
    waiting, high = await created(ours, await ours.session()), await created(theirs, await theirs.session())
    busy = await created(ours, await ours.session())
    await asyncio.to_thread(silent, server, *HELD)
    await stepped(ours)
    mesh.inject("trainer", [{"kind": "pass", "action": "hold_before", "times": 0}])
    requests = [await submitted(ours, "/forward_backward", batch(busy, 1, seed=1))]
    requests += [await submitted(ours, "/forward_backward", batch(waiting, 1, seed=2))]
    last = await submitted(theirs, "/forward_backward", batch(high, 1, seed=3))
    await asyncio.to_thread(seen, server, *HELD)
    mesh.inject("trainer", [])
    assert not any(["error" in await ours.future(request) for request in requests])
    assert "error" not in await theirs.future(last)
    await asyncio.to_thread(silent, server, *HELD)
    await ours.close()
    await theirs.close()


async def test_a_restoring_that_does_not_get_on_is_told(mesh: MeshProcesses, server: Prometheus) -> None:
    client = WireClient([mesh.base_url], mesh.api_key)
    model = await created(client, await client.session())
    await asyncio.to_thread(silent, server, "TinkermeshReplayStuck")
    mesh.inject("trainer", [{"kind": kind, "action": "hold_before", "times": 0} for kind in ("init", "load")])
    mesh.kill("trainer")
    pending = await submitted(client, "/forward_backward", batch(model, 1, seed=1))
    await asyncio.to_thread(seen, server, "TinkermeshReplayStuck")
    mesh.inject("trainer", [])
    assert "error" not in await client.future(pending)
    await asyncio.to_thread(silent, server, "TinkermeshReplayStuck")
    await client.close()


@contextmanager
def without_redis(mesh: MeshProcesses) -> Iterator[None]:
    mesh.kill("redis", signal.SIGSTOP)
    try:
        yield
    finally:
        mesh.kill("redis", signal.SIGCONT)


async def refused_sessions(mesh: MeshProcesses) -> None:
    """Held for the gateway's `retry_seconds`, then 503; the first is counted before the others come."""
    client = WireClient([mesh.base_url], mesh.api_key)
    body = {"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}
    assert (await client.post("/create_session", body)).status_code == 503
    assert {one.status_code for one in await client.post_many("/create_session", [body] * REFUSED)} == {503}
    await client.close()


async def test_a_redis_that_is_away_is_told_by_all_that_it_holds_up(mesh: MeshProcesses, server: Prometheus) -> None:
    await asyncio.to_thread(silent, server, *REDIS)
    with without_redis(mesh):
        refused = asyncio.create_task(refused_sessions(mesh))
        await asyncio.to_thread(seen, server, *REDIS)
        await refused
    await asyncio.to_thread(silent, server, *REDIS)


def test_a_lease_that_is_lost_again_and_again_is_told(mesh: MeshProcesses, server: Prometheus) -> None:
    """Redis stands still for a little longer than a lease, each time."""
    silent(server, "TinkermeshLeaseFlaps")
    for _ in range(12):
        with without_redis(mesh):
            until(lambda: server.query(f"{LEADING} == 0"), FAULT_SECONDS)
        until(lambda: server.query(f"{LEADING} == 1"), FAULT_SECONDS)
        if "TinkermeshLeaseFlaps" in server.firing():
            return
    pytest.fail("lost a dozen times, and nothing was told")
