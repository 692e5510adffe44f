"""``python -m tests.chaos.soak --minutes 60``: eight tenants at work while processes die every few seconds.

Every tenant plays one history after the other, checked as `make chaos` checks them. At the end the figures:
kills, commands, how long after a kill new work was settled, memory of every process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.chaos.checker import violations
from tests.chaos.faults import everything_up
from tests.chaos.figures import Figures
from tests.chaos.history import KINDS, PROCESSES, STOP_SECONDS, History, make
from tests.chaos.leaks import leaks
from tests.chaos.mesh import TENANTS, ChaosMesh
from tests.chaos.player import Player, Run

MEMORY_SECONDS = 10.0
STOPS = 0.1  # of the faults: SIGSTOP beyond the lease instead of SIGKILL


class Soak:
    def __init__(self, mesh: ChaosMesh, options: argparse.Namespace) -> None:
        self._mesh = mesh
        self._rng = random.Random(f"soak {options.seed}")
        self._seed = options.seed
        self._victims = options.victims.split(",")
        self._ends = time.monotonic() + 60 * options.minutes
        self._pauses = (options.every / 2, options.every * 3 / 2)
        self.figures = Figures()
        self.violations: list[str] = []

    async def run(self) -> None:
        storm = asyncio.create_task(self._storm())
        memory = asyncio.create_task(self._memory())
        runs = await asyncio.gather(*(self._tenant(number) for number in range(TENANTS)))
        for task in (storm, memory):
            task.cancel()
        await asyncio.gather(storm, memory, return_exceptions=True)
        self.violations += [f"{name} did not come up again" for name in await everything_up(self._mesh)]
        whole = Run(History(self._seed, TENANTS, ()), models=[model for run in runs for model in run.models])
        self.violations += await leaks(self._mesh.redis, self._mesh.settings.store, whole)

    async def _tenant(self, number: int) -> Run:
        """All its histories; answers the last one."""
        played = 0
        while True:
            seed = self._seed + TENANTS * played + number
            player = Player(
                make(seed, tenants=1), self._mesh.gateway_urls, [self._mesh.keys[number]], self.figures.settled
            )
            await self._history(player)
            played += 1
            if time.monotonic() > self._ends:
                return player.run

    async def _history(self, player: Player) -> None:
        await player.play()
        await player.look_again()
        await player.finish()
        await player.close()
        found = violations(player.run, self._mesh.settings.store)
        for text in found:
            print(f"seed {player.run.history.seed}: VIOLATION {text[:400]}", flush=True)
        self.violations += found
        self.figures.played(player.run)

    async def _storm(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*self._pauses))
            kind = self._rng.choice(self._victims)
            name = self._rng.choice(PROCESSES[kind])
            stops = kind != "redis" and self._rng.random() < STOPS
            if self._mesh.strike(name, signal.SIGSTOP if stops else signal.SIGKILL):
                self.figures.struck(kind, stopped=stops)
                if stops:
                    await asyncio.sleep(STOP_SECONDS)
                    self._mesh.strike(name, signal.SIGCONT)

    async def _memory(self) -> None:
        while True:
            for name in self._mesh.names(""):
                self.figures.memory(name, self._mesh.pid(name))
            await asyncio.sleep(MEMORY_SECONDS)


def main() -> int:
    options = _options()
    options.out = options.out.resolve()
    directory = options.out / "mesh"
    shutil.rmtree(options.out, ignore_errors=True)
    directory.parent.mkdir(parents=True)
    print(f"soak: seed {options.seed}, {options.minutes:g} min, a kill every {options.every:g} s", flush=True)
    with ChaosMesh(directory, trainer_options=["--slots", str(options.slots)]) as mesh:
        soak = Soak(mesh, options)
        asyncio.run(soak.run())
        if soak.violations:
            shutil.copytree(mesh.settings.logs, options.out / "logs")
    print(soak.figures.text(len(soak.violations)))
    for text in soak.violations[:50]:
        print(f"    {text[:400]}")
    (options.out / "figures.json").write_text(json.dumps(soak.figures.report(len(soak.violations)), indent=1))
    return 1 if soak.violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills, on average")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--victims", default=",".join(KINDS), help="kinds of processes that die")
    parser.add_argument("--out", type=Path, default=Path("out/soak"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
