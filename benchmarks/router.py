"""What placing costs beside the engine, and what prefix affinity gains: real samplers on the tiny model.

Overhead: 32 callers at once stream from one sampler, straight and through a place; output tokens/s of both.
Affinity: conversations over two samplers, whose prompts grow turn by turn, placed by the router and in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import mean, median

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc

from benchmarks.figure import Figure
from benchmarks.placed import directory, placed, prompt, request
from services.common.grpc_channel import open_channel
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.placing import Placements
from services.scheduler.sampling.routing import Router
from tests.contract.sampler.client import SamplerProcess, start_sampler
from tools.make_tiny_qwen3 import build

CALLERS = 32
PROMPT, OUTPUT = 64, 32
CONVERSATIONS, AT_ONCE, TURNS, TURN_TOKENS = 12, 4, 5, 96
_ids = itertools.count()


def run(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="router-") as scratch:
        model = build(Path(scratch) / "model")
        running = [start_sampler(model, Path(scratch) / name, max_running=CALLERS, threads=1) for name in ("a", "b")]
        try:
            return asyncio.run(_measure(running, 3 if quick else 9, 1 if quick else 3))
        finally:
            for one in running:
                one.stop()


async def _measure(running: list[SamplerProcess], repetitions: int, talks: int) -> list[Figure]:
    straight, through = await _overhead(running[0], repetitions)
    shares = [100 * (1 - mine / theirs) for mine, theirs in zip(through, straight, strict=True)]
    figures = [
        Figure("streams straight", straight, "tokens/s", note=f"{CALLERS} at once, {OUTPUT} tokens each"),
        Figure("streams through a place", through, "tokens/s"),
        Figure("placing, share of throughput", shares, "%", "<= 5"),
    ]
    for name, routed in (("routed", True), ("in turn", False)):
        results = [await _conversations(running, routed=routed) for _ in range(talks)]
        note = f"{CONVERSATIONS} conversations of {TURNS} turns over two samplers"
        figures.append(Figure(f"prompt tokens cached, {name}", [100 * hits for hits, _ in results], "%", note=note))
        figures.append(Figure(f"first token, {name}", [1000 * first for _, first in results], "ms", note="median"))
    return figures


async def _overhead(sampler: SamplerProcess, repetitions: int) -> tuple[list[float], list[float]]:
    fleet = Fleet(await directory([sampler]))
    placements = Placements(fleet, SamplingLimits(), Router())
    async with open_channel(sampler.address) as channel:
        stub = sampler_pb2_grpc.SamplerStub(channel)

        async def straight(wanted: pb.SampleStreamRequest) -> int:
            return sum([len(chunk.tokens) // 4 async for chunk in stub.SampleStream(wanted)])

        async def through(wanted: pb.SampleStreamRequest) -> int:
            return len((await placed(placements, wanted)).arrivals)

        await _rate(straight)  # warms up
        both = [(await _rate(straight), await _rate(through)) for _ in range(repetitions)]
    await fleet.close()
    return [one for one, _ in both], [other for _, other in both]


async def _rate(call: Callable[[pb.SampleStreamRequest], Awaitable[int]]) -> float:
    """Output tokens/s of CALLERS callers with two requests each, one after the other."""

    async def caller() -> int:
        return sum([await call(request(_prompt(PROMPT), "bench", OUTPUT)) for _ in range(2)])

    started = time.perf_counter()
    made = sum(await asyncio.gather(*(caller() for _ in range(CALLERS))))
    return made / (time.perf_counter() - started)


async def _conversations(running: list[SamplerProcess], *, routed: bool) -> tuple[float, float]:
    """(share of the prompt tokens of all turns but the first that were cached, median seconds to the first chunk).

    Their turns are taken in a random order; each repetition has a salt of its own, so nothing is left of others.
    """
    router, salt, order = Router(), f"talk-{next(_ids)}", np.random.default_rng(5)
    fleets = [Fleet(await directory(group)) for group in ([running] if routed else [[one] for one in running])]
    places = [Placements(fleet, SamplingLimits(), router) for fleet in fleets]
    talks = [_prompt(2 * TURN_TOKENS) for _ in range(CONVERSATIONS)]
    hits, firsts = [], []
    for turn in range(TURNS):
        turns = order.permutation(CONVERSATIONS).reshape(-1, AT_ONCE)
        for numbers in turns.tolist():
            requests = [request(talks[number], salt, 4) for number in numbers]
            asked = [placed(places[n % len(places)], one) for n, one in enumerate(requests)]
            for number, told in zip(numbers, await asyncio.gather(*asked), strict=True):
                if turn:
                    firsts.append(told.first)
                    hits.append(4 * told.cached / len(talks[number]))
                talks[number] += _prompt(TURN_TOKENS)
    for fleet in fleets:
        await fleet.close()
    return mean(hits), median(firsts)


def _prompt(tokens: int) -> bytes:
    return prompt(tokens, next(_ids))
