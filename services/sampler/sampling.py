"""One sample from its request to its result, whole or told while it is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tinkermesh.v1.sampler_pb2 import SampleChunk, SampleRequest, SampleStreamRequest
from tinkermesh.v1.types_pb2 import SampleResult

from services.sampler.adapter_table import AdapterTable
from services.sampler.admission import Admission
from services.sampler.legs import BOTH, check_stream
from services.sampler.ports import Engine
from services.sampler.results import build_result
from services.sampler.sampling_plan import Limits
from services.sampler.streaming import SequenceTeller

T = TypeVar("T")


class Sampling:
    """Both ways raise InvalidInput, MissingResource, Busy or Unavailable; the last two name the stage."""

    def __init__(
        self,
        engine: Engine,
        adapters: AdapterTable,
        limits: Limits,
        *,
        max_waiting: int,
        timeout_seconds: float,
        role: str = BOTH,
    ) -> None:
        self._engine = engine
        self._admission = Admission(
            adapters, limits, role=role, max_waiting=max_waiting, timeout_seconds=timeout_seconds
        )

    async def run(self, request: SampleRequest) -> SampleResult:
        async with self._admission.admitted(request) as admitted:
            sequences = await _together([self._engine.generate(sequence) for sequence in admitted.plan])
            tokens, stopped = sum(len(s.tokens) for s in sequences), sum(s.finish == "stop" for s in sequences)
            result = build_result(request.body, sequences)
            admitted.done(tokens, sequences[0].cached_tokens, stopped)
            return result

    async def stream(self, request: SampleStreamRequest, tell: Callable[[SampleChunk], None]) -> None:
        """Tells chunks of all sequences as they come; returns after the `finish` of each."""
        check_stream(request)
        async with self._admission.admitted(request.sample) as admitted:

            def told(chunk: SampleChunk) -> None:
                admitted.told()
                tell(chunk)

            decoder = self._engine.tokenizer
            tellers = [SequenceTeller(request, index, decoder, told) for index in range(len(admitted.plan))]
            streams = [self._engine.stream(sequence) for sequence in admitted.plan]
            await _together([one.run(stream) for one, stream in zip(tellers, streams, strict=True)])
            stopped = sum(one.finish == "stop" for one in tellers)
            admitted.done(sum(one.tokens for one in tellers), tellers[0].cached_tokens, stopped)


async def _together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """In their order; the first failure stops the others."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        # An adapter is unpinned only when nothing of the request is left in the engine.
        await asyncio.gather(*tasks, return_exceptions=True)
