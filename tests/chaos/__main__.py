"""``python -m tests.chaos``: seeded histories of clients whose mesh is killed, checked bitwise.

    python -m tests.chaos --histories 500 --shards 3     seeds 1..500; goes on where it was cut off
    python -m tests.chaos --seed 17 44                   those histories once more, whatever was found before
    python -m tests.chaos --calm --histories 5           without faults

Results: one JSON line per history in <out>/results.jsonl; the logs of a mesh with a violation under
<out>/violations/<seed>/. Exit code 1 when there is any violation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.history import KINDS, make
from tests.chaos.shard import Shard
from tests.chaos.summary import summary

SLOTS = (8, 3, 2)  # with few of them models are paged


def main() -> int:
    options = _options()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.worker >= 0:
        return _work(options)
    began = time.monotonic()
    for seed in options.seed or ():
        _forget(options.out, seed)
    workers = [subprocess.Popen(_worker_command(number)) for number in range(options.shards)]
    codes = [worker.wait() for worker in workers]
    results = [one for one in _results(options.out) if one["seed"] in _seeds(options)]
    print(summary(results, time.monotonic() - began))
    missing = len(_seeds(options)) - len(results)
    return 1 if any(codes) or missing or any(one["violations"] for one in results) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=500)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, nargs="+", help="these alone")
    parser.add_argument("--shards", type=int, default=3, help="meshes at a time")
    parser.add_argument("--slots", type=int, help="of every trainer; by default 8, 3 and 2, mesh by mesh")
    parser.add_argument("--victims", default=",".join(KINDS), help="kinds of processes that die")
    parser.add_argument("--calm", action="store_true", help="nothing dies")
    parser.add_argument("--out", type=Path, default=Path("out/chaos"))
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.shards = min(options.shards, len(options.seed)) if options.seed else options.shards
    return options


def _seeds(options: argparse.Namespace) -> set[int]:
    if options.seed:
        return set(options.seed)
    return set(range(options.first, options.first + options.histories))


def _worker_command(number: int) -> list[str]:
    return [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--worker", str(number)]


def _work(options: argparse.Namespace) -> int:
    """One shard of the seeds that have no result yet."""
    done = {one["seed"] for one in _results(options.out)}
    mine = sorted(_seeds(options) - done)[options.worker :: options.shards]
    histories = [make(seed, tuple(options.victims.split(","))) for seed in mine]
    histories = [one.calm() for one in histories] if options.calm else histories
    slots = options.slots or SLOTS[options.worker % len(SLOTS)]
    shard = Shard(options.out / f"mesh-{options.worker}", options.out / "violations", slots)
    found = 0
    for verdict in shard.run(histories):
        with (options.out / f"results-{options.worker}.jsonl").open("a") as file:
            file.write(verdict.line() + "\n")
        found += bool(verdict.violations)
        mark = "VIOLATION" if verdict.violations else "ok"
        print(
            f"seed {verdict.seed}: {mark}, {verdict.commands} commands, {slots} slots, {verdict.seconds} s", flush=True
        )
        for text in verdict.violations:
            print(f"    {text[:400]}", flush=True)
    return 1 if found else 0


def _results(out: Path) -> list[dict[str, Any]]:
    lines = [line for file in sorted(out.glob("results-*.jsonl")) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def _forget(out: Path, seed: int) -> None:
    for file in out.glob("results-*.jsonl"):
        kept = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["seed"] != seed]
        file.write_text("".join(kept))


if __name__ == "__main__":
    sys.exit(main())
