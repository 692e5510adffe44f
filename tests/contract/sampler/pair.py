"""A prefill and a decode sampler as processes of their own, the tier between them, and one that does both."""

from __future__ import annotations

import itertools
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import SamplerClient, SamplerProcess, Sequence, body, start_sampler
from tests.doubles.small_disk import small_disk
from tests.doubles.valkey import ValkeyProcess

BLOCK = 32
SEED = "11"
WAIT_SECONDS = 4.0
SMALL_CACHE_GIB = 0.0016
"""26 blocks of the tiny model: the context of one request, and little more."""
_numbers = itertools.count()


@dataclass(slots=True)
class Pair:
    prefill: SamplerProcess
    decode: SamplerProcess
    whole: SamplerProcess
    redis: ValkeyProcess
    tier: Path
    store: Path

    def blocks(self) -> set[Path]:
        return set(self.tier.rglob("*.kv"))


@contextmanager
def running_pair(model: Path, scratch: Path) -> Iterator[Pair]:
    """All three use one store for adapters."""
    with ExitStack() as stack:
        tier = stack.enter_context(small_disk(scratch / "tier", 256))
        (scratch / "redis").mkdir()
        redis = ValkeyProcess(scratch / "redis")
        redis.start()
        stack.callback(redis.kill)
        shared = {"store_root": scratch / "store", "max_context": 512, "max_batched_tokens": 64}
        (scratch / "store").mkdir()
        of_pair = {"kv_directory": tier, "redis_url": redis.url, "kv_hash_seed": SEED, "kv_wait_seconds": WAIT_SECONDS}
        started = []
        for role, settings in (
            ("prefill", of_pair),
            ("decode", {**of_pair, "kv_cache_gib": SMALL_CACHE_GIB}),
            ("both", {}),
        ):
            place = scratch / role
            more = {"role": role, "metrics_listen": "127.0.0.1:0", "metrics_port_file": place / "metrics"}
            process = start_sampler(model, place, threads=1, **shared, **settings, **more)
            stack.callback(process.process.kill)
            started.append(process)
        yield Pair(*started, redis, tier, scratch / "store")


def metric(process: SamplerProcess, name: str) -> float:
    """The sum of a metric's series, as the process tells them now."""
    port = int((process.log.parent / "metrics").read_text())
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def leg_request(
    leg: int, prompt: list[int], length: int, adapter: AdapterRef | None = None, salt: str = ""
) -> pb.SampleRequest:
    return pb.SampleRequest(
        request_id=f"leg.{next(_numbers)}",
        adapter=adapter,
        body=body(prompt, max_tokens=length, temperature=0.0),
        cache_salt=salt,
        leg=leg,
    )


@dataclass(slots=True)
class Flow:
    """Clients of the three; `split` is what a router does."""

    prefill: SamplerClient
    decode: SamplerClient
    whole: SamplerClient

    async def load(self, *adapters: AdapterRef) -> None:
        """On both legs: neither loads one within a request."""
        for adapter in adapters:
            for client in (self.prefill, self.decode):
                await client.load(adapter)

    async def leg(
        self,
        client: SamplerClient,
        leg: int,
        prompt: list[int],
        length: int,
        adapter: AdapterRef | None,
        salt: str = "",
    ) -> tuple[Sequence, int]:
        """The sequence, and prompt tokens that were not computed."""
        result = (await client.stub.Sample(leg_request(leg, prompt, length, adapter, salt), timeout=60)).result
        return Sequence.of(result.sequences[0]), result.prompt_cache_hit_tokens

    async def split(
        self, prompt: list[int], length: int, adapter: AdapterRef | None = None, salt: str = ""
    ) -> tuple[list[int], np.ndarray]:
        first, _ = await self.leg(self.prefill, pb.LEG_PREFILL, prompt, 1, adapter, salt)
        rest, cached = await self.leg(self.decode, pb.LEG_DECODE, [*prompt, *first.tokens], length - 1, adapter, salt)
        assert cached == len(prompt)
        return first.tokens + rest.tokens, np.concatenate([first.logprobs, rest.logprobs])

    async def mixed(
        self, prompt: list[int], length: int, adapter: AdapterRef | None = None
    ) -> tuple[list[int], np.ndarray]:
        made = await self.whole.greedy(prompt, length, adapter)
        return made.tokens, made.logprobs
