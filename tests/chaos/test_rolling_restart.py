"""Every service and Redis restarted in an orderly way, one after the other, under load: no request fails."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import violations
from tests.chaos.history import make
from tests.chaos.player import Player, Run
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scenario import start_scenario
from tests.doubles.scenario_checks import check_scenario

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(280)]
SERVICES = ("redis", "gateway-0", "gateway-1", "scheduler-0", "scheduler-1", "trainer", "sampler", "redis")
CLIENTS = 2


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[MeshProcesses]:
    """Two gateways behind one socket, as behind a load balancer."""
    options = ["--slots", "16"]
    with MeshProcesses(tmp_path / "mesh", gateways=2, schedulers=2, trainer_options=options) as running:
        yield running


class Load:
    """Wire clients and an SDK that work until told to stop."""

    def __init__(self, mesh: MeshProcesses, directory: Path) -> None:
        self._mesh = mesh
        self._directory = directory
        self._over = False
        self.runs: list[Run] = []
        self.reports: list[dict[str, Any]] = []

    async def play(self, number: int) -> None:
        while not self._over:
            history = make(1_000 + CLIENTS * len(self.runs) + number, tenants=1).calm()
            player = Player(history, [self._mesh.base_url], [self._mesh.api_key])
            await player.play()
            await player.finish()
            await player.close()
            self.runs.append(player.run)

    async def sdk(self) -> None:
        """The unmodified SDK in a process of its own, its scenario again and again."""
        while not self._over:
            directory = self._directory / str(len(self.reports))
            run = start_scenario(directory, self._mesh.environment, BASE_MODEL, "--rounds", "10")
            self.reports.append(await asyncio.to_thread(run.report))

    async def while_restarting(self, names: tuple[str, ...]) -> None:
        clients = [asyncio.create_task(self.play(number)) for number in range(CLIENTS)]
        clients.append(asyncio.create_task(self.sdk()))
        for name in names:
            await asyncio.to_thread(restart, self._mesh, name)
            await asyncio.sleep(0.5)  # under load alone for a moment
        self._over = True
        await asyncio.gather(*clients)

    @property
    def answers(self) -> Counter[str]:
        """By status or kind of broken connection."""
        counted: Counter[str] = Counter()
        for run in self.runs:
            for name, count in run.seen.answers.items():
                counted[name.rsplit(" ", 1)[1]] += count
        return counted


def restart(mesh: MeshProcesses, name: str) -> None:
    before = mesh.restarts(name)
    mesh.kill(name, signal.SIGTERM)
    mesh.wait_restarted(name, before + 1)


def test_a_rolling_restart_fails_no_request(mesh: MeshProcesses, tmp_path: Path) -> None:
    load = Load(mesh, tmp_path / "sdk")
    asyncio.run(load.while_restarting(SERVICES))
    for report in load.reports:
        check_scenario(report, vocab=512, tolerance=0.0)
    assert not [text for run in load.runs for text in violations(run, mesh.settings.store)]
    failed = {name: count for name, count in load.answers.items() if name not in ("200", "204", "408")}
    assert (failed, load.answers["200"] > 500) == ({}, True), load.answers
    assert {name: mesh.restarts(name) for name in SERVICES} == Counter(SERVICES)
