"""What long prompts do to streams beside them: a prefill and a decode sampler against two that do both.

Real samplers on the tiny model, one thread each. Callers generate one request after the other while long prompts arrive
at a steady pace, whether earlier ones are answered or not. What is told of the streams is what a reader of them saw
from the first long prompt's arrival to the last one's first token.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.figure import Figure, quantile
from benchmarks.interleave import interleave, ratio
from benchmarks.placed import Told, directory, placed, prompt, request
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.placing import Placements
from services.scheduler.sampling.routing import Router
from tests.contract.sampler.client import SamplerProcess, start_sampler
from tests.doubles.valkey import ValkeyProcess
from tools.make_tiny_qwen3 import build

CALLERS, PROMPT, OUTPUT = 8, 64, 256
CONTEXT, LONG, LONG_OUTPUT = 2048, 1_960, 8
PACE_SECONDS = 0.5
LEAD_SECONDS = 0.5
"""Streams are under way before the first long prompt arrives."""
START_SECONDS = 600.0
SEEDS_OF_A_TURN = 1_000
MIXED, SPLIT = "mixed", "prefill + decode"


class Load(NamedTuple):
    """The same for both set-ups: requests of each caller, long prompts."""

    requests: int
    long: int


class Seen(NamedTuple):
    """Of one repetition. Milliseconds, but for `rate` (tokens/s) and `beside`."""

    p50: float
    p99: float
    rate: float
    first: float
    second: float
    """From a stream's first token to its second one: between them a prompt's blocks change samplers, if they do."""
    long_first: float
    beside: float
    """Percent of the long prompts whose first token came while every caller went on."""


def run(quick: bool) -> list[Figure]:
    repetitions, load = (2, Load(3, 4)) if quick else (7, Load(10, 16))
    with tempfile.TemporaryDirectory(prefix="prefill-decode-") as scratch, _setups(Path(scratch)) as setups:
        variants = {name: _turns(running, load) for name, running in setups.items()}
        return _figures(interleave(variants, repetitions, warmup=1), load)


@contextmanager
def _setups(scratch: Path) -> Iterator[dict[str, list[SamplerProcess]]]:
    """All four engines at once, so that set-ups can take turns: one that has no request needs no CPU."""
    with ExitStack() as stack:
        model, tier = build(scratch / "model"), scratch / "tier"
        for directory_ in (tier, scratch / "redis"):
            directory_.mkdir()
        redis = ValkeyProcess(scratch / "redis")
        redis.start()
        stack.callback(redis.stop)
        pair = {"kv_directory": tier, "redis_url": redis.url, "kv_hash_seed": "11"}

        def started(name: str, role: str, **more: object) -> SamplerProcess:
            settings = {"threads": 1, "max_context": CONTEXT, "role": role, **more}
            process = start_sampler(model, scratch / name, START_SECONDS, **settings)
            stack.callback(process.stop)
            return process

        yield {
            MIXED: [started(name, "both") for name in ("a", "b")],
            SPLIT: [started(role, role, **pair) for role in ("prefill", "decode")],
        }


def _turns(running: list[SamplerProcess], load: Load) -> Callable[[], Seen]:
    """Each call is the next turn; turns of one number have the same prompts, whichever the set-up."""
    turns = itertools.count()
    return lambda: asyncio.run(_turn(running, load, next(turns)))


async def _turn(running: list[SamplerProcess], load: Load, turn: int) -> Seen:
    fleet = Fleet(await directory(running))
    ask = _Asks(Placements(fleet, SamplingLimits(), Router()), turn)
    try:
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(ask.one_by_one(load.requests)) for _ in range(CALLERS)]
            long = group.create_task(ask.at_a_pace(load.long))
        return _seen([caller.result() for caller in callers], long.result())
    finally:
        await fleet.close()


class _Asks:
    """The salt is the turn's own: nothing is left in any cache of the turns before."""

    def __init__(self, placements: Placements, turn: int) -> None:
        self._placements = placements
        self._salt = f"turn-{turn}"
        first = turn * SEEDS_OF_A_TURN
        self._short, self._long = itertools.count(first), itertools.count(first + SEEDS_OF_A_TURN // 2)

    async def one_by_one(self, requests: int) -> list[Told]:
        return [await self._placed(PROMPT, next(self._short), OUTPUT) for _ in range(requests)]

    async def at_a_pace(self, prompts: int) -> list[Told]:
        due = time.perf_counter() + LEAD_SECONDS
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in range(prompts):
                await asyncio.sleep(max(0.0, due + number * PACE_SECONDS - time.perf_counter()))
                tasks.append(group.create_task(self._placed(LONG, next(self._long), LONG_OUTPUT)))
        return [task.result() for task in tasks]

    async def _placed(self, tokens: int, seed: int, output: int) -> Told:
        return await placed(self._placements, request(prompt(tokens, seed), self._salt, output))


def _seen(callers: list[list[Told]], long: list[Told]) -> Seen:
    """A caller that is done leaves room to the others, so nothing after the first one's end counts."""
    streams = [told for caller in callers for told in caller]
    quiet = min(caller[-1].arrivals[-1] for caller in callers)
    begin, end = long[0].began, min(quiet, max(told.arrivals[0] for told in long))
    gaps = [1000 * gap for told in streams for gap in _gaps(told, begin, end)]
    tokens = sum(begin <= at <= end for told in streams for at in told.arrivals)
    return Seen(
        p50=quantile(gaps, 0.5),
        p99=quantile(gaps, 0.99),
        rate=tokens / (end - begin),
        first=1000 * median(told.first for told in streams),
        second=1000 * median(told.arrivals[1] - told.arrivals[0] for told in streams),
        long_first=1000 * median(told.first for told in long),
        beside=100 * sum(told.arrivals[0] <= quiet for told in long) / len(long),
    )


def _gaps(told: Told, begin: float, end: float) -> Iterator[float]:
    """Seconds before each token but a stream's first; those that come together have none between them."""
    for before, at in itertools.pairwise(told.arrivals):
        if begin <= at <= end:
            yield at - before


def _figures(results: dict[str, list[Seen]], load: Load) -> list[Figure]:
    streams = f"{CALLERS} callers, {load.requests} x {OUTPUT} tokens each; two samplers of one thread; in turns"
    prompts = f"{load.long} prompts of {LONG} tokens, one every {PACE_SECONDS:g} s"
    told = [
        ("streams, between tokens, p50", "p50", "ms", streams),
        ("streams, between tokens, p99", "p99", "ms", f"while {prompts} arrive"),
        ("streams, output", "rate", "tokens/s", ""),
        ("streams, first token", "first", "ms", "median"),
        ("streams, first to second token", "second", "ms", "median"),
        ("long prompts, first token", "long_first", "ms", "median"),
        ("long prompts beside all streams", "beside", "%", "below 100: streams ended too early for the load"),
    ]
    figures = []
    for what, field, unit, note in told:
        values = {name: [float(getattr(seen, field)) for seen in seens] for name, seens in results.items()}
        figures += [Figure(f"{what}: {name}", values[name], unit, note=note) for name in values]
        if field in ("p99", "rate", "long_first"):
            figures.append(Figure(f"{what}: {SPLIT} / {MIXED}", ratio(values, SPLIT, MIXED), "ratio"))
    return figures
