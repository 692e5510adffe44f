"""kill -9 of every gateway and every scheduler in the middle of a job: the client notices nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from tests.doubles.admin import leader
from tests.doubles.eventually import until
from tests.doubles.fake_trainer import BASE_MODEL, POOL
from tests.doubles.journal import datum_counts, step_counts, unit_counts
from tests.doubles.mesh import MeshProcesses
from tests.doubles.published import read_state
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario
from tests.doubles.wire_client import WireClient

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]
ROUNDS = 10
PARTS = ("gateway-0", "gateway-1", "scheduler-0", "scheduler-1")
SLOW_UNITS: list[dict[str, object]] = [
    {"kind": "pass", "action": "delay_before", "seconds": 0.15, "times": 0},
    {"kind": "optim", "action": "delay_after", "seconds": 0.15, "times": 0},
]


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[MeshProcesses]:
    with MeshProcesses(tmp_path / "mesh", gateways=2, schedulers=2) as mesh:
        mesh.inject("trainer", SLOW_UNITS)
        yield mesh


def final_state(mesh: MeshProcesses, report: dict[str, Any]) -> dict[str, Any]:
    return read_state(mesh.settings.store, public_directory(parse_tinker_path(report["final"])))


def kill_scheduler(mesh: MeshProcesses, name: str) -> None:
    """In the middle of whatever it drives now; returns once it is up again."""
    restarts = mesh.restarts(name)
    mesh.kill(name)
    mesh.wait_restarted(name, restarts + 1)


def wait_leader(mesh: MeshProcesses, seconds: float = 60.0) -> str:
    return until(lambda: leader(",".join(mesh.mesh.addresses.schedulers), POOL), seconds)


def test_kill_of_every_gateway_and_scheduler_changes_no_bit_GAP_01(replicated: MeshProcesses, tmp_path: Path) -> None:
    mesh = replicated
    calm = start_scenario(tmp_path / "calm", mesh.environment, BASE_MODEL, "--rounds", str(ROUNDS)).report()
    stormy_run = start_scenario(tmp_path / "stormy", mesh.environment, BASE_MODEL, "--rounds", str(ROUNDS))
    stormy_run.wait_mark("created")
    mesh.kill("gateway-0")
    stormy_run.wait_mark("round 2")
    first = wait_leader(mesh)
    kill_scheduler(mesh, first)
    stormy_run.wait_mark("round 5")
    mesh.kill("gateway-1")
    stormy_run.wait_mark("round 7")
    kill_scheduler(mesh, "scheduler-1" if first == "scheduler-0" else "scheduler-0")
    stormy = stormy_run.report()
    check_scenario(stormy, vocab=512, tolerance=0.0)
    assert {name: mesh.restarts(name) for name in PARTS} == dict.fromkeys(PARTS, 1)
    assert final_state(mesh, stormy) == final_state(mesh, calm)
    for part in ("chunked", "rounds", "resumed"):
        assert stormy[part] == calm[part]
    assert set(datum_counts(mesh.journal()).values()) == {1}
    assert set(unit_counts(mesh.journal()).values()) == {1}


def test_a_lost_step_would_be_seen(mesh: MeshProcesses, tmp_path: Path) -> None:
    """Negative control of the comparison above: one round less gives other weights."""
    reports = [
        start_scenario(tmp_path / str(n), mesh.environment, BASE_MODEL, "--rounds", str(n)).report() for n in (1, 2)
    ]
    states = [final_state(mesh, report) for report in reports]
    assert states[0] != states[1]


def test_kill_of_redis_loses_nothing_FUT_05(replicated: MeshProcesses, tmp_path: Path) -> None:
    run = start_scenario(tmp_path, replicated.environment, BASE_MODEL, "--rounds", "3")
    run.wait_mark("round 1")
    replicated.kill("redis")
    replicated.wait_restarted("redis", 1)
    check_scenario(run.report(), vocab=512, tolerance=0.0)
    assert set(datum_counts(replicated.journal()).values()) == {1}
    assert set(unit_counts(replicated.journal()).values()) == {1}


def test_dropped_replies_do_not_repeat_units_IDEM_14(replicated: MeshProcesses, tmp_path: Path) -> None:
    rules = [{"kind": kind, "action": "drop_reply", "times": 0} for kind in ("pass", "optim", "init", "save")]
    replicated.inject("trainer", [dict(rule) for rule in rules])
    report = start_scenario(tmp_path / "run", replicated.environment, BASE_MODEL, "--rounds", "2").report()
    check_scenario(report, vocab=512, tolerance=0.0)
    assert set(step_counts(replicated.journal()).values()) == {1}
    assert set(datum_counts(replicated.journal()).values()) == {1}


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[MeshProcesses]:
    """Two schedulers; its gateway would wait for a minute for the answer to a call."""
    seconds = {"RPC_TIMEOUT": "60", "RETRY": "120"}
    variables = {f"TINKERMESH_GATEWAY_{name}_SECONDS": value for name, value in seconds.items()}
    with MeshProcesses(tmp_path / "mesh", schedulers=2, variables=variables) as mesh:
        yield mesh


def test_a_scheduler_that_hangs_holds_no_call_for_long_FAIL_14(patient: MeshProcesses) -> None:
    """A stopped process keeps its connections: only silence tells."""
    mesh = patient
    led = wait_leader(mesh)
    hanging = next(name for name in mesh.names("scheduler") if name != led)
    asyncio.run(four_sessions(mesh))
    mesh.kill(hanging, signal.SIGSTOP)
    try:
        slowest = asyncio.run(four_sessions(mesh))
    finally:
        mesh.kill(hanging, signal.SIGCONT)
    assert 1.0 < slowest < 40.0, slowest  # it was met, and not waited for until the call's deadline


async def four_sessions(mesh: MeshProcesses) -> float:
    """Seconds of the slowest; one gateway goes round the schedulers."""
    client = WireClient([mesh.base_url], mesh.api_key)
    seconds = []
    for _ in range(4):
        began = time.monotonic()
        await client.session()
        seconds.append(time.monotonic() - began)
    await client.close()
    return max(seconds)
