"""What a sampler's first request with an adapter waits for: pushed when it was published, or loaded on demand.

A real sampler on the tiny model with nothing else to do. An adapter is written, as a publication does, right before it
is used and leaves the sampler afterwards, so no load has to evict another one. A request with an adapter that has
long been there is the floor.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from tinkermesh.v1 import types_pb2 as types

from benchmarks.figure import Figure
from benchmarks.interleave import interleave
from benchmarks.placed import POOL, directory, placed, prompt, request
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.placing import Placements
from services.scheduler.sampling.routing import Router
from tests.contract.sampler.adapters import write_adapter
from tests.contract.sampler.client import SamplerProcess, start_sampler
from tools.make_tiny_qwen3 import build

RANK = 32
PROMPT, OUTPUT = 64, 4
PAUSE_SECONDS = 0.1
"""Before whatever is timed: nothing that came before is still under way in the engine."""
START_SECONDS = 600.0


class Timed(NamedTuple):
    """Seconds; `push` is over before the request begins."""

    first: float
    push: float = 0.0


def run(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="cold-adapter-") as scratch:
        model = build(Path(scratch) / "model")
        sampler = start_sampler(model, Path(scratch) / "sampler", START_SECONDS, threads=1, max_rank=RANK)
        try:
            # One loop for all repetitions: the fleet and its channel belong to it.
            with asyncio.Runner() as runner:
                return _measured(runner, sampler, 15 if quick else 51)
        finally:
            sampler.stop()


def _measured(runner: asyncio.Runner, sampler: SamplerProcess, repetitions: int) -> list[Figure]:
    fleet = runner.run(_fleet(sampler))
    asks = _Asks(fleet, sampler)

    def each(ask: Callable[[], Coroutine[Any, Any, Timed]]) -> Callable[[], Timed]:
        return lambda: runner.run(ask())

    variants = {"warm": each(asks.warm), "pushed": each(asks.pushed), "on demand": each(asks.on_demand)}
    results = interleave(variants, repetitions, warmup=2)
    runner.run(fleet.close())
    return _figures(results, _size(sampler))


async def _fleet(sampler: SamplerProcess) -> Fleet:
    return Fleet(await directory([sampler]))


class _Asks:
    def __init__(self, fleet: Fleet, sampler: SamplerProcess) -> None:
        self._fleet = fleet
        self._placements = Placements(fleet, SamplingLimits(), Router())
        self._sampler = sampler
        self._numbers = itertools.count()
        self._resident = self._published()

    async def warm(self) -> Timed:
        await self._awake()
        return Timed(await self._first(self._resident))

    async def on_demand(self) -> Timed:
        adapter = self._published()
        await self._awake()
        timed = Timed(await self._first(adapter))
        await self._gone(adapter)
        return timed

    async def pushed(self) -> Timed:
        adapter = self._published()
        await self._awake()
        push = await self._push(adapter)
        await asyncio.sleep(PAUSE_SECONDS)
        timed = Timed(await self._first(adapter), push)
        await self._gone(adapter)
        return timed

    async def _awake(self) -> None:
        """An untimed request with the resident adapter, so that all three begin alike: without it the floor came right
        after an unloading, and the others after writing an adapter or loading it."""
        await self._first(self._resident)
        await asyncio.sleep(PAUSE_SECONDS)

    async def _push(self, adapter: types.AdapterRef) -> float:
        """Seconds until the sampler has acknowledged it."""
        began = time.perf_counter()
        await self._fleet.push(POOL, adapter)
        await asyncio.sleep(0)  # its load begins in the background; the one below joins it, and raises where it fails
        for link in await self._fleet.links(POOL):
            await link.load(adapter)
        return time.perf_counter() - began

    async def _first(self, adapter: types.AdapterRef) -> float:
        """A prompt of its own each time: none is in the cache."""
        asked = request(prompt(PROMPT, next(self._numbers)), "cold", OUTPUT)
        return (await placed(self._placements, asked, adapter)).first

    async def _gone(self, adapter: types.AdapterRef) -> None:
        """Raises AssertionError when it was not there: then something else was measured."""
        for link in await self._fleet.links(POOL):
            if not await link.unload(adapter.name):
                raise AssertionError(f"{adapter.name} was not loaded")

    def _published(self) -> types.AdapterRef:
        number = next(self._numbers)
        path = f"runs/cold{number}/sampler_weights/_version_x_{number}"
        write_adapter(self._sampler.model, self._sampler.store / path, seed=number, rank=RANK)
        return types.AdapterRef(name=f"cold{number}@1", path=path)


def _size(sampler: SamplerProcess) -> int:
    """Bytes of one adapter's weights."""
    return next(sampler.store.rglob("adapter_model.safetensors")).stat().st_size


def _figures(results: dict[str, list[Timed]], size: int) -> list[Figure]:
    note = f"one idle sampler of one thread; rank {RANK} on every matrix, {size / 1024:.0f} KiB"
    firsts = {name: [1000 * timed.first for timed in many] for name, many in results.items()}
    pushes = [1000 * timed.push for timed in results["pushed"]]
    figures = [
        Figure("first token, adapter warm", firsts["warm"], "ms", note=note),
        Figure("first token, adapter pushed", firsts["pushed"], "ms", note="asked for after the push is acknowledged"),
        Figure("first token, adapter on demand", firsts["on demand"], "ms", note="loaded while it is placed"),
        Figure("a push", pushes, "ms", note="until the sampler has acknowledged it"),
    ]
    for name in ("pushed", "on demand"):
        above = [cold - warm for cold, warm in zip(firsts[name], firsts["warm"], strict=True)]
        figures.append(Figure(f"{name}, above warm", above, "ms", note="within each repetition"))
    return figures
