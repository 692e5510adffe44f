"""Requests to real samplers through a place, as schedulers make them, and when their tokens came."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import sampler_pb2_grpc, scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.grpc_channel import open_channel
from services.sampler.registration import registration
from services.scheduler.sampling.generation import Wanted
from services.scheduler.sampling.placing import Placements
from tests.contract.sampler.client import SamplerProcess

POOL = "bench"
SECONDS = 300.0
VOCABULARY = 400
_ids = itertools.count()


class Samplers:
    """fleet.SamplerDirectory over processes that a benchmark started."""

    def __init__(self, registered: list[scheduler_pb2.RegisterSamplerRequest]) -> None:
        self._registered = registered

    async def samplers(self, pool: str) -> list[scheduler_pb2.RegisterSamplerRequest]:
        return self._registered

    async def drained_samplers(self, pool: str) -> set[str]:
        return set()


async def directory(running: Sequence[SamplerProcess]) -> Samplers:
    """As they would register themselves: role and cache facts decide which of them work together."""
    registered = []
    for one in running:
        async with open_channel(one.address) as channel:
            stub = sampler_pb2_grpc.SamplerStub(channel)
            told = await stub.Describe(pb.DescribeSamplerRequest(), timeout=SECONDS)
        registered.append(registration(told, one.address))
    return Samplers(registered)


@dataclass(slots=True)
class Told:
    """perf_counter: `began` before the place was asked for, one of `arrivals` for each token."""

    began: float
    arrivals: list[float] = field(default_factory=list)
    cached: int = 0
    """Tokens of the prompt that were not computed."""

    @property
    def first(self) -> float:
        """Seconds to the first token, the wait for a place and the adapter included."""
        return self.arrivals[0] - self.began


async def placed(
    placements: Placements, request: pb.SampleStreamRequest, adapter: types.AdapterRef | None = None
) -> Told:
    sample, told = request.sample, Told(time.perf_counter())
    wanted = Wanted(POOL, sample.cache_salt, adapter, 1, sample.body.prompt_tokens)
    async with placements.place(wanted, SECONDS) as place, aclosing(place.stream(request, SECONDS)) as chunks:
        async for chunk in chunks:
            told.arrivals += [time.perf_counter()] * (len(chunk.tokens) // 4)
            told.cached = max(told.cached, chunk.cached_tokens)
    return told


def prompt(tokens: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(3, VOCABULARY, tokens).astype("<i4").tobytes()


def request(prompt_tokens: bytes, salt: str, tokens: int) -> pb.SampleStreamRequest:
    """For exactly so many tokens: no token ends it before."""
    body = types.SampleBody(
        prompt_tokens=prompt_tokens, num_samples=1, max_tokens=tokens, temperature=1.0, top_p=1.0, top_k=-1
    )
    body.stop.disabled = True
    sample = pb.SampleRequest(request_id=f"bench-{next(_ids)}", body=body, cache_salt=salt)
    return pb.SampleStreamRequest(sample=sample)
