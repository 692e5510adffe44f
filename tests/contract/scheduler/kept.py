"""What is kept of one tenant's samples, without anything that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.ids import key_hash
from services.scheduler.result_files import ResultMover
from services.scheduler.results import Results
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.large_results import LargeResults
from services.scheduler.store.payloads import FileBlobs, PayloadStore
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sampling import SampleToAdmit, SamplingSession, SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.tenancy.limits import encode_limits
from services.scheduler.tenancy.records import Quotas

POOL, TENANT, SAMPLER = "p", "tenant-a", "s:sample:0:p"
LONG_MS = 3_600_000
LARGE = (8 << 20) + 1


class Store:
    """Samples of one tenant, without anything that runs."""

    def __init__(self, redis: Redis, functions: Functions, root: Path) -> None:
        self.redis: Any = redis
        self.call = functions.call
        self.sequences = SequenceStore(redis, functions, LONG_MS)
        self.samples = SamplingStore(redis, functions, self.sequences)
        self.blobs = FileBlobs(root)
        self.root = root
        self.results = Results(RequestReader(redis, functions, self.blobs), delivered_grace_ms=1)
        self.mover = ResultMover(LargeResults(redis, functions), self.results, self.blobs)
        self.payloads = PayloadStore(redis, self.blobs)

    async def open(self) -> None:
        await self.samples.open(POOL, SamplingSession(SAMPLER, TENANT, "s", "base", "", "", ""))

    def key(self, seq: int) -> str:
        return key_hash("sample", SAMPLER, seq)

    async def admit(self, seq: int, quotas: Quotas | None = None, *, records: bool = False) -> str:
        limits = "" if quotas is None else encode_limits(quotas, 0, answers=True, records=records)
        sample = SampleToAdmit(SAMPLER, self.key(seq), TENANT, "f", seq, f"{SAMPLER}.{seq}.0", b"c", "", b"", limits)
        request_id, _ = await self.samples.admit(POOL, sample, 0, LONG_MS)
        return request_id

    async def settle(self, seq: int, size: int, retention_ms: int = LONG_MS, records: Sequence[int] = ()) -> int:
        """Answers how many bytes its result has."""
        await self.admit(seq)
        result = types.Result(sample=types.SampleResult(prompt_logprobs=bytes(size)))
        kept = [types.SequenceRecord(tenant_id=TENANT, tokens=bytes(length)) for length in records]
        await self.samples.settle(POOL, self.key(seq), result, retention_ms, kept)
        return result.ByteSize()

    async def usage(self, name: str) -> int:
        return int(await self.redis.hget(keys.usage(POOL, TENANT), name) or 0)

    async def expire(self) -> None:
        await asyncio.sleep(0.005)  # Redis' clock has moved on
        while await self.call("expire_results", [keys.pool_prefix(POOL)], 100):
            pass

    async def files(self) -> int:
        await self.payloads.drop_blobs(POOL)
        return len([path for path in self.root.glob("*") if path.is_file()])
