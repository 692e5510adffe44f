"""`run_mesh` around small real processes: what it shows, and its exit codes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from services.common.errors import InvalidInput
from services.local import demo, up
from services.local.mesh import LocalMesh
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec, Stage
from tests.unit.local.test_plan import settings
from tests.unit.local.test_supervisor import BROKEN, CRASHING, spec


class SmallMesh(LocalMesh):
    """Two children that answer nothing; `programs` replaces what one of them runs."""

    programs: dict[str, str] = {}

    def specs(self) -> Sequence[ChildSpec]:
        directory = self.settings.logs
        stages = {"redis": Stage.STATE, "trainer": Stage.ENGINES}
        return [
            spec(directory, name, stage=stage, **({"program": self.programs[name]} if name in self.programs else {}))
            for name, stage in stages.items()
        ]

    async def _wait_serving(self) -> None:
        pass


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "LocalMesh", SmallMesh)
    monkeypatch.setattr(SmallMesh, "programs", {})


class Shown:
    """Runs a mesh and keeps what it showed; `terminal` as on a screen."""

    def __init__(self, *, terminal: bool = False) -> None:
        self._file = io.StringIO()
        self._console = Console(file=self._file, force_terminal=terminal, width=200)

    async def run(self, chosen: LocalSettings, work: up.Work | None = None) -> int:
        async with asyncio.timeout(30):
            return await up.run_mesh(chosen, self._console, work)

    @property
    def lines(self) -> list[str]:
        return self._file.getvalue().splitlines()


async def done(mesh: LocalMesh) -> int:
    return 3


async def test_without_a_terminal_each_ready_child_is_one_line(tmp_path: Path) -> None:
    shown = Shown()
    assert await shown.run(settings(tmp_path), done) == 3
    assert shown.lines[0] == "starting the mesh: redis, trainer"
    assert [line.rsplit(" after ", 1)[0] for line in shown.lines[1:3]] == ["redis is ready", "trainer is ready"]
    assert shown.lines[-1] == "stopping the mesh ..."


async def test_on_a_terminal_the_live_display_says_it_alone(tmp_path: Path) -> None:
    shown = Shown(terminal=True)
    assert await shown.run(settings(tmp_path), done) == 3
    assert not [line for line in shown.lines if line.startswith(("starting the mesh: redis", "redis is ready"))]


async def test_child_that_cannot_start_gives_its_exit_code_and_its_last_lines(tmp_path: Path) -> None:
    SmallMesh.programs = {"trainer": BROKEN}
    shown = Shown()
    assert await shown.run(settings(tmp_path)) == 7
    assert "trainer ended with exit code 7" in shown.lines
    assert "  config.json is missing" in shown.lines


async def test_mesh_that_cannot_go_on_ends_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.local.supervisor.BACKOFF_SECONDS", (0.01,))
    SmallMesh.programs = {"trainer": CRASHING}
    shown = Shown()
    assert await shown.run(settings(tmp_path)) == 1
    assert "trainer ended 6 times within a minute" in shown.lines


async def test_signal_stops_the_mesh_with_exit_code_0_MESH_03(tmp_path: Path) -> None:
    async def interrupted(mesh: LocalMesh) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.Event().wait()

    assert await Shown().run(settings(tmp_path), interrupted) == 0


async def test_brackets_in_a_failure_are_shown_and_are_no_markup(tmp_path: Path) -> None:
    async def fails(mesh: LocalMesh) -> int:
        raise InvalidInput("prompt: token 9 is outside [0, 9) [/prompt]")

    shown = Shown()
    assert await shown.run(settings(tmp_path), fails) == 1
    assert "prompt: token 9 is outside [0, 9) [/prompt]" in shown.lines


async def test_mesh_that_others_can_reach_warns_of_the_key_everyone_knows_SEC_03(tmp_path: Path) -> None:
    near, far = Shown(), Shown()
    await near.run(settings(tmp_path), done)
    await far.run(settings(tmp_path, host="0.0.0.0"), done)
    assert not [line for line in near.lines if "firewall" in line]
    assert [line for line in far.lines if "tml-local" in line and "firewall" in line]


async def test_demo_deaf_to_sigterm_is_killed_when_the_mesh_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STOP_SECONDS", 0.2)
    started, script = tmp_path / "started", tmp_path / "deaf.py"
    script.write_text(
        "import os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "while True: signal.pause()\n"
    )
    mesh = SmallMesh(settings(tmp_path))
    running = asyncio.create_task(demo.run_script(mesh, script, [str(started)]))
    async with asyncio.timeout(20):
        while not started.exists() or not started.read_text():
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    await mesh.stop()
