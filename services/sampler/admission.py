"""Who may sample: requests are checked, unfinished sequences counted, the time bounded, the adapter pinned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from tinkermesh.v1.sampler_pb2 import Leg, SampleRequest

from services.common import logs
from services.common.clock import now_ms
from services.common.errors import Busy, Unavailable
from services.common.telemetry import current_traceparent, record_span, span
from services.sampler import metrics
from services.sampler.adapter_table import AdapterTable
from services.sampler.legs import BOTH, check_leg
from services.sampler.ports import EngineAdapter, SequenceRequest
from services.sampler.sampling_plan import Limits, check_body, plan_sequences

log = logging.getLogger(__name__)

BASE = "base"
Attributes = dict[str, str | int | float | bool]


@dataclass(slots=True)
class Stage:
    """Where a sample is and since when."""

    name: str
    started_ms: int

    @classmethod
    def start(cls, name: str) -> Stage:
        return cls(name, now_ms())

    def record(self, span_name: str, attributes: Attributes) -> None:
        """A span from its start to now."""
        record_span(span_name, current_traceparent(), self.started_ms, now_ms(), attributes)


@dataclass(slots=True)
class Admitted:
    """A request whose sequences may be generated now; its adapter stays where it is meanwhile."""

    request: SampleRequest
    plan: list[SequenceRequest]
    stage: Stage
    begun: bool = False

    def told(self) -> None:
        """A chunk was told; the first one ends the wait for a first token."""
        if not self.begun:
            self.begun = True
            self.stage.record("sampler.first_token", {"adapter": adapter_name(self.request)})

    def done(self, tokens: int, cached: int, stopped: int) -> None:
        """Counts and traces what was generated; `cached` tokens of the prompt were not computed."""
        outcome: Attributes = {
            "adapter": adapter_name(self.request),
            "output_tokens": tokens,
            "cached_tokens": cached,
            "stopped": stopped,
        }
        self.stage.record("sampler.generate", outcome)
        metrics.tokens(len(self.request.body.prompt_tokens) // 4, cached, tokens)
        log.info("sampled %d sequences with %s", len(self.plan), adapter_name(self.request))


class Admission:
    def __init__(
        self, adapters: AdapterTable, limits: Limits, *, role: str = BOTH, max_waiting: int, timeout_seconds: float
    ) -> None:
        self._adapters = adapters
        self._limits = limits
        self._role = role
        self._max_waiting = max_waiting
        self._timeout = timeout_seconds
        self._accepted = 0
        metrics.watching_sequences(lambda: self._accepted, max_waiting)

    @asynccontextmanager
    async def admitted(self, request: SampleRequest) -> AsyncIterator[Admitted]:
        """Around the generation. Raises InvalidInput, MissingResource, Busy or Unavailable, which name the stage."""
        with metrics.sample():
            check_body(request.body, self._limits)
            check_leg(request, self._role)
            with (
                self._counted(request.body.num_samples),
                logs.bind(request_id=request.request_id),
                span("sampler.sample", _attributes(request)),
            ):
                async with self._bounded() as stage, self._adapter(request) as adapter:
                    stage.record("sampler.load_adapter", {"adapter": adapter_name(request)})
                    stage.name, stage.started_ms = "generating", now_ms()
                    yield Admitted(request, self._plan(request, adapter), stage)

    def _plan(self, request: SampleRequest, adapter: EngineAdapter | None) -> list[SequenceRequest]:
        return plan_sequences(request.request_id, request.body, adapter, self._limits, request.cache_salt, request.leg)

    @contextmanager
    def _counted(self, count: int) -> Iterator[None]:
        if self._accepted + count > self._max_waiting:
            raise Busy(f"this sampler holds {self._accepted} unfinished sequences; retry later")
        self._accepted += count
        try:
            yield
        finally:
            self._accepted -= count

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[Stage]:
        stage = Stage.start("loading the adapter")
        try:
            async with asyncio.timeout(self._timeout):
                yield stage
        except TimeoutError:
            raise Unavailable(
                f"stage {stage.name}: the sample was not finished after {self._timeout:g} s; "
                "ask for fewer tokens or samples"
            ) from None

    @asynccontextmanager
    async def _adapter(self, request: SampleRequest) -> AsyncIterator[EngineAdapter | None]:
        if not request.HasField("adapter"):
            yield None
            return
        async with self._adapters.use(request.adapter.name, request.adapter.path) as adapter:
            yield adapter


def adapter_name(request: SampleRequest) -> str:
    return request.adapter.name if request.HasField("adapter") else BASE


def _attributes(request: SampleRequest) -> Attributes:
    body = request.body
    return {
        "request_id": request.request_id,
        "adapter": adapter_name(request),
        "prompt_tokens": len(body.prompt_tokens) // 4,
        "num_samples": body.num_samples,
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "leg": Leg.Name(request.leg),
    }
