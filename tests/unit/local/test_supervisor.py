"""The supervisor with small real processes: order, restart, giving up, clean stop."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.errors import Unavailable
from services.local.child import State
from services.local.spec import ChildSpec, Readiness, Stage, StopRank
from services.local.supervisor import ChildFailed, Supervisor

# Writes its port file, appends its name to a shared file when it starts and when it is told to stop.
SERVE = """
import pathlib, signal, sys
name, port, events = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
def note(what):
    with events.open("a") as file: file.write(f"{what} {name}\\n")
signal.signal(signal.SIGTERM, lambda *_: (note("stop"), sys.exit(0)))
note("start"); port.write_text("1")
while True: signal.pause()
"""
DEAF = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path(sys.argv[2]).write_text("1")
while True: signal.pause()
"""
# Its second life starts and never becomes ready.
HANGS_LATER = """
import pathlib, signal, sys
port, lives = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
with lives.open("a") as file: file.write("life\\n")
if len(lives.read_text().splitlines()) != 2: port.write_text("1")
while True: signal.pause()
"""
BROKEN = "import sys; print('config.json is missing'); sys.exit(7)"
CRASHING = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text('1')"


def spec(directory: Path, name: str, program: str = SERVE, **options: object) -> ChildSpec:
    port_file = directory / f"{name}.port"
    fields: dict[str, object] = {
        "name": name,
        "command": (sys.executable, "-c", program, name, str(port_file), str(directory / "events")),
        "address": "127.0.0.1:1",
        "stage": Stage.ENGINES,
        "stop_rank": StopRank.TRAINER,
        "readiness": Readiness.PORT_FILE,
        "log_file": directory / f"{name}.log",
        "port_file": port_file,
        "ready_seconds": 10.0,
        "stop_seconds": 5.0,
    }
    return ChildSpec(**{**fields, **options})  # type: ignore[arg-type]


def events(directory: Path) -> list[str]:
    return (directory / "events").read_text().splitlines()


async def until(condition: object, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


@pytest.fixture
async def supervisors() -> AsyncIterator[list[Supervisor]]:
    made: list[Supervisor] = []
    yield made
    for supervisor in made:
        await supervisor.stop()


async def test_children_start_by_stage_and_stop_by_rank(tmp_path: Path, supervisors: list[Supervisor]) -> None:
    supervisor = Supervisor(
        [
            spec(tmp_path, "gateway", stop_rank=StopRank.GATEWAY),
            spec(tmp_path, "scheduler", stage=Stage.CONTROL, stop_rank=StopRank.SCHEDULER),
            spec(tmp_path, "redis", stage=Stage.STATE, stop_rank=StopRank.REDIS),
        ]
    )
    supervisors.append(supervisor)
    await supervisor.start()
    assert events(tmp_path) == ["start redis", "start scheduler", "start gateway"]
    assert all(child.state is State.READY for child in supervisor.children)
    await supervisor.stop()
    assert events(tmp_path)[3:] == ["stop gateway", "stop scheduler", "stop redis"]


async def test_killed_child_is_started_again_and_said_so(tmp_path: Path, supervisors: list[Supervisor]) -> None:
    said: list[str] = []
    supervisor = Supervisor([spec(tmp_path, "gateway")], said.append)
    supervisors.append(supervisor)
    await supervisor.start()
    child = supervisor.child("gateway")
    first = child.pid
    child.kill()
    await until(lambda: child.restarts == 1 and child.state is State.READY)
    assert child.pid != first
    assert "SIGKILL" in said[0]


async def test_child_that_cannot_start_fails_the_mesh_with_its_exit_code_and_last_lines(
    tmp_path: Path, supervisors: list[Supervisor]
) -> None:
    supervisor = Supervisor([spec(tmp_path, "trainer", BROKEN), spec(tmp_path, "gateway")])
    supervisors.append(supervisor)
    with pytest.raises(ChildFailed, match="trainer ended with exit code 7") as caught:
        await supervisor.start()
    assert caught.value.exit_code == 7
    assert caught.value.child.last_lines() == ["config.json is missing"]
    await supervisor.stop()
    assert supervisor.child("gateway").pid is None


async def test_child_that_ends_again_and_again_fails_the_mesh(
    tmp_path: Path, supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.local.supervisor.BACKOFF_SECONDS", (0.01,))
    supervisor = Supervisor([spec(tmp_path, "sampler", CRASHING)])
    supervisors.append(supervisor)
    await supervisor.start()
    async with asyncio.timeout(20):
        failure = await supervisor.wait_failed()
    assert "sampler ended 6 times" in failure.message


async def test_a_watch_that_breaks_fails_the_mesh_with_its_cause_FAIL_12(
    tmp_path: Path, supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor([spec(tmp_path, "sampler", CRASHING)])
    supervisors.append(supervisor)
    await supervisor.start()

    async def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(supervisor.child("sampler"), "start", no_thread)
    async with asyncio.timeout(20):
        failure = await supervisor.wait_failed()
    assert "sampler cannot be watched any more" in failure.message
    assert "can't start new thread" in failure.message


async def test_child_deaf_to_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    supervisor = Supervisor([spec(tmp_path, "sampler", DEAF, stop_seconds=0.3)])
    await supervisor.start()
    process = supervisor.child("sampler").process
    assert process is not None
    await supervisor.stop()
    assert process.returncode == -signal.SIGKILL


async def test_child_that_is_never_ready_is_named(tmp_path: Path, supervisors: list[Supervisor]) -> None:
    supervisor = Supervisor([spec(tmp_path, "trainer", "import signal; signal.pause()", ready_seconds=0.5)])
    supervisors.append(supervisor)
    with pytest.raises(ChildFailed, match="trainer was not ready after 0 s|trainer was not ready"):
        await supervisor.start()


async def test_child_that_hangs_after_a_restart_is_killed_and_started_once_more(
    tmp_path: Path, supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.local.supervisor.BACKOFF_SECONDS", (0.01,))
    said: list[str] = []
    supervisor = Supervisor([spec(tmp_path, "trainer", HANGS_LATER)], said.append)
    supervisors.append(supervisor)
    await supervisor.start()
    child = supervisor.child("trainer")
    child.spec = dataclasses.replace(
        child.spec, ready_seconds=2.0
    )  # the rest must not wait long for the one that hangs
    child.kill()
    await until(lambda: child.restarts >= 2 and child.state is State.READY, 30.0)
    assert any("trainer was not ready after 2 s" in line for line in said)


async def test_child_that_cannot_be_started_again_fails_the_mesh(
    tmp_path: Path, supervisors: list[Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    monkeypatch.setattr("services.local.supervisor.BACKOFF_SECONDS", (0.01,))
    supervisor = Supervisor([spec(tmp_path, "trainer", log_file=logs / "trainer.log")])
    supervisors.append(supervisor)
    await supervisor.start()
    shutil.rmtree(logs)
    supervisor.child("trainer").kill()
    async with asyncio.timeout(10):
        failure = await supervisor.wait_failed()
    assert "trainer cannot be started again" in failure.message


async def test_one_child_that_cannot_be_stopped_keeps_no_other_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    supervisor = Supervisor(
        [spec(tmp_path, "gateway", stop_rank=StopRank.GATEWAY), spec(tmp_path, "redis")], said.append
    )
    await supervisor.start()
    gateway, redis = supervisor.child("gateway"), supervisor.child("redis")

    async def stuck() -> None:
        raise Unavailable("gateway did not end, not even by SIGKILL")

    with monkeypatch.context() as patched:
        patched.setattr(gateway, "stop", stuck)
        await supervisor.stop()
    assert redis.state is State.STOPPED
    assert said == ["gateway did not end, not even by SIGKILL"]
    await gateway.stop()


async def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    port = tmp_path / "port"
    command = (sys.executable, "-c", SERVE, "orphan", str(port), str(tmp_path / "events"))
    parent = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "services.local.leash", str(os.getpid()), *{command!r}])
time.sleep(60)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent)
    await until(port.exists)
    process.kill()
    await process.wait()
    await until(lambda: "stop orphan" in events(tmp_path))
