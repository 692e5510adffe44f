"""One attempt to sample on one sampler."""

from __future__ import annotations

import time

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.errors import TinkermeshError
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.outcome import Verdict, checked, of_error, verdict
from services.scheduler.sampling.waiting import Waiting


class Retry:
    """The attempt had no outcome; `verdict` says where to go, `reason` why."""

    def __init__(self, kind: Verdict, stage: str, error: TinkermeshError) -> None:
        self.verdict = kind
        self.stage = stage
        self.reason = error.message


async def attempt(waiting: Waiting, link: SamplerLink, body: types.SampleBody, seconds: float) -> types.Result | Retry:
    """Load the adapter explicitly, then sample. What may be settled, or why it must be tried again."""
    sample = waiting.sample
    now_ms = time.time_ns() // 1_000_000
    telemetry.record_span("queue", sample.traceparent, sample.admitted_ms, now_ms, {"request_id": sample.request_id})
    attributes = {"request_id": sample.request_id, "sampler_id": link.sampler_id, "adapter": waiting.adapter_name}
    with (
        logs.bind(request_id=sample.request_id, tenant_id=sample.tenant_id),
        telemetry.span("sample", attributes, parent=sample.traceparent),
    ):
        return await _attempt(waiting, link, body, seconds)


async def _attempt(waiting: Waiting, link: SamplerLink, body: types.SampleBody, seconds: float) -> types.Result | Retry:
    sample, stage = waiting.sample, "load adapter"
    try:
        if sample.adapter is not None:
            await link.load(sample.adapter)
        stage = "sample"
        request = pb.SampleRequest(request_id=sample.request_id, adapter=sample.adapter, body=body)
        return checked(await link.sample(request, seconds), body.num_samples)
    except TinkermeshError as error:
        link.forget(waiting.adapter_name)
        kind = verdict(error)
        return of_error(stage, error) if kind is Verdict.FAIL else Retry(kind, stage, error)
