"""One sample from its request to its result, with a bound and a name for every stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tinkermesh.v1.sampler_pb2 import SampleRequest
from tinkermesh.v1.types_pb2 import SampleResult

from services.common import logs
from services.common.clock import now_ms
from services.common.errors import Busy, Unavailable
from services.common.telemetry import current_traceparent, record_span, span
from services.sampler import metrics
from services.sampler.adapter_table import AdapterTable
from services.sampler.ports import Engine, EngineAdapter, GeneratedSequence, SequenceRequest
from services.sampler.results import build_result
from services.sampler.sampling_plan import Limits, check_body, plan_sequences

log = logging.getLogger(__name__)

BASE = "base"


@dataclass(slots=True)
class Stage:
    """Where a sample is and since when."""

    name: str
    started_ms: int

    @classmethod
    def start(cls, name: str) -> Stage:
        return cls(name, now_ms())


class Sampling:
    def __init__(
        self, engine: Engine, adapters: AdapterTable, limits: Limits, *, max_waiting: int, timeout_seconds: float
    ) -> None:
        self._engine = engine
        self._adapters = adapters
        self._limits = limits
        self._max_waiting = max_waiting
        self._timeout = timeout_seconds
        self._accepted = 0
        metrics.watching_sequences(lambda: self._accepted, max_waiting)

    async def run(self, request: SampleRequest) -> SampleResult:
        """Raises InvalidInput, MissingResource, Busy or Unavailable; the last two name the stage."""
        with metrics.sample():
            return await self._run(request)

    async def _run(self, request: SampleRequest) -> SampleResult:
        check_body(request.body, self._limits)
        count = request.body.num_samples
        if self._accepted + count > self._max_waiting:
            raise Busy(f"this sampler holds {self._accepted} unfinished sequences; retry later")
        self._accepted += count
        try:
            with logs.bind(request_id=request.request_id), span("sampler.sample", _attributes(request)):
                result = await self._bounded(request)
                log.info("sampled %d sequences with %s", len(result.sequences), _adapter_name(request))
                return result
        finally:
            self._accepted -= count

    async def _bounded(self, request: SampleRequest) -> SampleResult:
        stage = Stage.start("loading the adapter")
        try:
            async with asyncio.timeout(self._timeout):
                return await self._generate(request, stage)
        except TimeoutError:
            raise Unavailable(
                f"stage {stage.name}: the sample was not finished after {self._timeout:g} s; "
                "ask for fewer tokens or samples"
            ) from None

    async def _generate(self, request: SampleRequest, stage: Stage) -> SampleResult:
        async with self._adapter(request) as adapter:
            _record("sampler.load_adapter", stage, {"adapter": _adapter_name(request)})
            stage.name, stage.started_ms = "generating", now_ms()
            plan = plan_sequences(request.request_id, request.body, adapter, self._limits, request.cache_salt)
            sequences = await self._all(plan)
        _record("sampler.generate", stage, _outcome(request, sequences))
        _count_tokens(request, sequences)
        return build_result(request.body, sequences)

    @asynccontextmanager
    async def _adapter(self, request: SampleRequest) -> AsyncIterator[EngineAdapter | None]:
        if not request.HasField("adapter"):
            yield None
            return
        async with self._adapters.use(request.adapter.name, request.adapter.path) as adapter:
            yield adapter

    async def _all(self, plan: Sequence[SequenceRequest]) -> list[GeneratedSequence]:
        """In the plan's order; the first failure stops the others."""
        tasks = [asyncio.create_task(self._engine.generate(sequence)) for sequence in plan]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # An adapter is unpinned only when nothing of the request is left in the engine.
            await asyncio.gather(*tasks, return_exceptions=True)


def _adapter_name(request: SampleRequest) -> str:
    return request.adapter.name if request.HasField("adapter") else BASE


def _attributes(request: SampleRequest) -> dict[str, str | int | float | bool]:
    body = request.body
    return {
        "request_id": request.request_id,
        "adapter": _adapter_name(request),
        "prompt_tokens": len(body.prompt_tokens) // 4,
        "num_samples": body.num_samples,
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
    }


def _outcome(request: SampleRequest, sequences: Sequence[GeneratedSequence]) -> dict[str, str | int | float | bool]:
    return {
        "adapter": _adapter_name(request),
        "output_tokens": sum(len(sequence.tokens) for sequence in sequences),
        "cached_tokens": sequences[0].cached_tokens,
        "stopped": sum(sequence.finish == "stop" for sequence in sequences),
    }


def _count_tokens(request: SampleRequest, sequences: Sequence[GeneratedSequence]) -> None:
    generated = sum(len(sequence.tokens) for sequence in sequences)
    metrics.tokens(len(request.body.prompt_tokens) // 4, sequences[0].cached_tokens, generated)


def _record(name: str, stage: Stage, attributes: dict[str, str | int | float | bool]) -> None:
    record_span(name, current_traceparent(), stage.started_ms, now_ms(), attributes)
