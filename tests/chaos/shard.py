"""Plays histories one after the other against one mesh; a new mesh after some, and after a violation."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.checker import violations
from tests.chaos.faults import Storm, everything_up
from tests.chaos.history import History
from tests.chaos.leaks import leaks, purged
from tests.chaos.mesh import KEEP_ROWS_MS, ChaosMesh
from tests.chaos.player import Player

HISTORIES_PER_MESH = 40
HISTORY_SECONDS = 240.0


@dataclass(slots=True)
class Verdict:
    """One line of the results."""

    seed: int
    violations: list[str]
    seconds: float
    commands: int
    slots: int = 0
    faults: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


async def play(mesh: ChaosMesh, history: History) -> Verdict:
    """One history from its first request to the last look for leaks."""
    began = time.monotonic()
    player, storm = Player(history, mesh.gateway_urls, mesh.keys), Storm(mesh, history)
    raging = asyncio.create_task(storm.rage())
    found: list[str] = []
    try:
        async with asyncio.timeout(HISTORY_SECONDS):
            await player.play()
            await _calm(raging)
            found += [f"{name} did not come up again" for name in await everything_up(mesh)]
            await player.look_again()
            await player.finish()
            found += violations(player.run, mesh.settings.store)
            found += await leaks(mesh.redis, mesh.settings.store, player.run)
    except TimeoutError:
        found += [f"the history took over {HISTORY_SECONDS:g} s", *player.run.seen.violations]
    finally:
        await _calm(raging)
        await player.close()
    return Verdict(
        history.seed,
        found,
        round(time.monotonic() - began, 2),
        sum(len(model.commands) for model in player.run.models),
        faults=[{**_short(one.fault), "where": one.where} for one in storm.happened],
        answers=_by_status(player.run.seen.answers),
        models=[model.model_id for model in player.run.models],
    )


async def _calm(raging: asyncio.Task[None]) -> None:
    raging.cancel()
    with suppress(asyncio.CancelledError):
        await raging


def _short(fault: Any) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in ("signal", "victim", "holder", "point", "nth", "at")}


def _by_status(answers: Counter[str]) -> dict[str, int]:
    """Without the routes: how often which status or transport error."""
    counted: Counter[str] = Counter()
    for name, count in answers.items():
        counted[name.rsplit(" ", 1)[1]] += count
    return dict(counted)


class Shard:
    """`directory`: a mesh's state at a time. What violated is kept under `evidence`."""

    def __init__(self, directory: Path, evidence: Path, slots: int) -> None:
        self._directory = directory
        self._evidence = evidence
        self._slots = slots

    def run(self, histories: list[History]) -> Iterator[Verdict]:
        waiting = list(histories)
        while waiting:
            with self._mesh() as mesh:
                yield from self._on(mesh, waiting)

    def _on(self, mesh: ChaosMesh, waiting: list[History]) -> Iterator[Verdict]:
        models: list[str] = []
        for _ in range(HISTORIES_PER_MESH):
            if not waiting:
                break
            history = waiting.pop(0)
            verdict = asyncio.run(play(mesh, history))
            verdict.slots = self._slots
            models += verdict.models
            last = not waiting or len(models) >= 4 * HISTORIES_PER_MESH
            if last and not verdict.violations:
                verdict.violations += _unpurged(mesh, models)
            if verdict.violations:
                self._keep(mesh, history.seed)
            yield verdict
            if verdict.violations or last:
                return

    @contextmanager
    def _mesh(self) -> Iterator[ChaosMesh]:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        with ChaosMesh(self._directory, trainer_options=["--slots", str(self._slots)]) as mesh:
            yield mesh

    def _keep(self, mesh: ChaosMesh, seed: int) -> None:
        kept = self._evidence / str(seed)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(mesh.settings.logs, kept / "logs")
        for journal in mesh.settings.state_dir.glob("*.journal"):
            shutil.copy(journal, kept)


def _unpurged(mesh: ChaosMesh, models: list[str]) -> list[str]:
    """Rows of ended sessions go after KEEP_ROWS_MS; twice that is time enough."""
    deadline = time.monotonic() + 2 * KEEP_ROWS_MS / 1000
    while (found := purged(mesh.redis, models)) and time.monotonic() < deadline:
        time.sleep(1.0)
    return [f"not purged: {key}" for key in found[:20]]
