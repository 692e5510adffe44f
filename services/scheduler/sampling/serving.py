"""One attempt to sample on one sampler."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.clock import now_ms
from services.common.errors import TinkermeshError
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.outcome import Verdict, checked, of_error, verdict
from services.scheduler.sampling.recording import records
from services.scheduler.sampling.waiting import Waiting
from services.scheduler.store.sampling import WaitingSample

log = logging.getLogger(__name__)


class Served(NamedTuple):
    """What may be settled, and what the sequences leave behind."""

    result: types.Result
    records: list[types.SequenceRecord]


class Retry:
    """The attempt had no outcome; `verdict` says where to go, `reason` why."""

    def __init__(self, kind: Verdict, stage: str, error: TinkermeshError) -> None:
        self.verdict = kind
        self.stage = stage
        self.reason = error.message


async def attempt(waiting: Waiting, link: SamplerLink, body: types.SampleBody, seconds: float) -> Served | Retry:
    """Load the adapter explicitly, then sample. What may be settled, or why it must be tried again."""
    sample = waiting.sample
    telemetry.record_span("queue", sample.traceparent, sample.admitted_ms, now_ms(), _ids(sample))
    attributes = {**_ids(sample), "sampler_id": link.sampler_id, "adapter": waiting.adapter_name}
    with (
        logs.bind(request_id=sample.request_id, tenant_id=sample.tenant_id),
        telemetry.span("sample", attributes, parent=sample.traceparent),
    ):
        return await _attempt(waiting, link, body, seconds)


async def _attempt(waiting: Waiting, link: SamplerLink, body: types.SampleBody, seconds: float) -> Served | Retry:
    sample, stage = waiting.sample, "load adapter"
    try:
        if sample.adapter is not None:
            await link.load(sample.adapter)
        stage = "sample"
        # The tenant as salt: no tenant learns from cache hits what others prompted.
        request = pb.SampleRequest(
            request_id=sample.request_id, adapter=sample.adapter, body=body, cache_salt=sample.tenant_id
        )
        result = checked(await link.sample(request, seconds), body)
        stage = "record"
        return Served(result, await records(link, request, result.sample, seconds))
    except TinkermeshError as error:
        link.forget(waiting.adapter_name)
        kind = verdict(error)
        return Served(of_error(stage, error), []) if kind is Verdict.FAIL else Retry(kind, stage, error)


def report(sample: WaitingSample, result: types.Result, started_ms: int) -> None:
    """What became of a sample, to the log and to its trace; `started_ms`: when its outcome was there."""
    failed = result.failure.message if result.HasField("failure") else ""
    action = "fail" if failed else "done"
    telemetry.record_span("settle", sample.traceparent, started_ms, now_ms(), {**_ids(sample), "action": action})
    trace_id = telemetry.trace_id_of(sample.traceparent) if telemetry.enabled() else ""
    with logs.bind(request_id=sample.request_id, tenant_id=sample.tenant_id, trace_id=trace_id):
        if failed:
            log.warning("sample: fail: %s", failed)
        else:
            log.info("sample: done")


def _ids(sample: WaitingSample) -> dict[str, str | int | float | bool]:
    return {"request_id": sample.request_id, "tenant_id": sample.tenant_id}
