"""``python -m tests.chaos.real``: histories whose trainer is the real one, compared with their own undisturbed run.

    python -m tests.chaos.real --histories 20 [--first 1] [--seconds 170]     goes on where it was cut off

Each history is played twice on one mesh: calm, then with its faults. The same answers are demanded: bitwise where
a model's commands were computed in the same company (`demanded`), within the design's tolerances elsewhere. Results:
one JSON line per history in <out>/results.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.companies import companies
from tests.chaos.compare import Comparison, compare
from tests.chaos.faults import Happened, Storm, everything_up
from tests.chaos.history import STOP_SECONDS, Fault, History, ModelPlan, make
from tests.chaos.leaks import leaks
from tests.chaos.mesh import RealChaosMesh
from tests.chaos.player import Player, Run
from tools.make_tiny_qwen3 import build

VICTIMS = ("trainer", "trainer", "scheduler", "gateway", "redis")
SHORTEST = 4  # tokens of a datum: below that the design promises no tolerance
TRAINER_POINTS = ("answer:Execute", "serve:Execute", "answer:Execute", "fsync:before")
KEPT = ("fb", "forward", "bad", "optim", "save", "load")
QUICKER = 0.3  # a tiny model's history is over before a fault that was drawn for the double's clients


def real_history(seed: int) -> History:
    """One tenant, up to two models, no samples; one gateway; the trainer dies at least once."""
    made = make(seed, VICTIMS, tenants=1)
    models = tuple(_fitted(plan) for plan in made.models[:2])
    faults = tuple(_spread(fault) for fault in made.faults)
    faults += (Fault("kill", "", point=TRAINER_POINTS[seed % len(TRAINER_POINTS)], holder="trainer", nth=2 + seed % 7),)
    return replace(made, models=models, faults=faults)


def _fitted(plan: ModelPlan) -> ModelPlan:
    kept = [replace(one, length=max(SHORTEST, one.length)) for one in plan.commands if one.kind in KEPT]
    return replace(plan, commands=tuple(replace(one, seq=seq) for seq, one in enumerate(kept, start=1)))


def _spread(fault: Fault) -> Fault:
    victim = fault.victim.replace("gateway-1", "gateway-0")
    return replace(fault, victim=victim, at=QUICKER * fault.at, pause=STOP_SECONDS if fault.pause else 0.0)


async def play(mesh: RealChaosMesh, history: History) -> tuple[Run, list[str], Storm]:
    """What one run of it showed, and what was wrong beside its numbers."""
    player, storm = Player(history, mesh.gateway_urls, mesh.keys), Storm(mesh, history)
    raging = asyncio.create_task(storm.rage())
    try:
        await player.play()
    finally:
        raging.cancel()
        await asyncio.gather(raging, return_exceptions=True)
    found = [f"{name} did not come up again" for name in await everything_up(mesh)]
    await player.look_again()
    await player.finish()
    await player.close()
    found += await leaks(mesh.redis, mesh.settings.store, player.run)
    return player.run, player.run.seen.violations + found, storm


def verdict(mesh: RealChaosMesh, seed: int) -> dict[str, Any]:
    history, began = real_history(seed), time.monotonic()
    calm, found, _ = asyncio.run(play(mesh, history.calm()))
    undisturbed = time.monotonic() - began
    stormy, more, storm = asyncio.run(play(mesh, history))
    log = mesh.logs("trainer")
    together = companies(calm, log), companies(stormy, log)
    told: Comparison = compare(calm, stormy, mesh.settings.store, together)
    return {
        "seed": seed,
        "violations": [*(f"calm: {text}" for text in found), *more, *told.violations],
        "bitwise": told.bitwise,
        "demanded": told.demanded,
        "within": told.within,
        "largest": told.largest,
        "calm_seconds": round(undisturbed, 1),
        "stormy_seconds": round(time.monotonic() - began - undisturbed, 1),
        "faults": [
            f"{one.fault.signal} {one.fault.victim or one.fault.holder} at {one.where}" for one in storm.happened
        ],
    }


def _told(one: Happened) -> str:
    return f"{one.fault.signal} {one.fault.victim or one.fault.holder} at {one.where or 'nothing'}"


def main() -> int:
    options = _options()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    results, ends = options.out / "results.jsonl", time.monotonic() + options.seconds
    done = {json.loads(line)["seed"] for line in results.read_text().splitlines()} if results.exists() else set()
    waiting = [seed for seed in range(options.first, options.first + options.histories) if seed not in done]
    shutil.rmtree(options.out / "mesh", ignore_errors=True)
    bad = 0
    with RealChaosMesh(options.out / "mesh", options.model or build(options.out / "tiny-qwen3")) as mesh:
        for seed in waiting:
            if time.monotonic() > ends:
                break
            told = verdict(mesh, seed)
            with results.open("a") as file:
                file.write(json.dumps(told) + "\n")
            print(json.dumps(told), flush=True)
            if told["violations"]:
                bad += 1
                shutil.copytree(mesh.settings.logs, options.out / "violations" / str(seed), dirs_exist_ok=True)
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--model", type=Path, help="directory of a model; by default a tiny one is made")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further history after these")
    parser.add_argument("--out", type=Path, default=Path("out/chaos-real"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
