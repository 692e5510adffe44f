"""One attempt to sample, on one sampler or a leg on each of two."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.clock import now_ms
from services.common.errors import AdapterNotLoaded, TinkermeshError
from services.scheduler.sampling.collecting import collected
from services.scheduler.sampling.flight import Flight
from services.scheduler.sampling.legs import is_whole
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.loading import all_loaded, loaded
from services.scheduler.sampling.outcome import Verdict, checked, of_error, verdict
from services.scheduler.sampling.recording import records
from services.scheduler.sampling.seat import Seat
from services.scheduler.sampling.split import split_stream
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


async def attempt(waiting: Waiting, flight: Flight, body: types.SampleBody, limits: SamplingLimits) -> Served | Retry:
    """Load the adapter explicitly, then sample. What may be settled, or why it must be tried again."""
    sample = waiting.sample
    telemetry.record_span("queue", sample.traceparent, sample.admitted_ms, now_ms(), _ids(sample))
    attributes = {**_ids(sample), "sampler_id": flight.link.sampler_id, "adapter": waiting.adapter_name}
    with (
        logs.bind(request_id=sample.request_id, tenant_id=sample.tenant_id),
        telemetry.span("sample", attributes, parent=sample.traceparent),
    ):
        return await _attempt(waiting, flight, body, limits)


async def _attempt(waiting: Waiting, flight: Flight, body: types.SampleBody, limits: SamplingLimits) -> Served | Retry:
    sample, stage = waiting.sample, "load adapter"
    whole = flight.spot.prefill is None or is_whole(body)
    links = [flight.spot.prompt_link] if whole else flight.spot.links
    try:
        await _load(links, sample.adapter, limits)
        stage = "sample"
        # The tenant as salt: no tenant learns from cache hits what others prompted.
        request = pb.SampleRequest(
            request_id=sample.request_id, adapter=sample.adapter, body=body, cache_salt=sample.tenant_id
        )
        result = await (_whole if whole else _split)(request, waiting.attempts, flight, limits)
        settled = checked(result, body)
        stage = "record"
        return Served(settled, await records(links[0], request, result, limits.sample_seconds))
    except TinkermeshError as error:
        for link in links:
            link.forget(waiting.adapter_name)
        kind = verdict(error)
        if whole and kind is Verdict.ELSEWHERE:
            links[0].suspect()
        return Served(of_error(stage, error), []) if kind is Verdict.FAIL else Retry(kind, stage, error)


async def _load(links: Sequence[SamplerLink], adapter: types.AdapterRef | None, limits: SamplingLimits) -> None:
    """Raises what one of them said. Who is away is sent nothing for a moment: else the sample would be back at once."""
    failed = await all_loaded(links, adapter, _end(limits))
    for link, error in failed.items():
        if verdict(error) is Verdict.ELSEWHERE:
            link.suspect()
    for error in failed.values():
        raise error


async def _whole(
    request: pb.SampleRequest, _attempt: int, flight: Flight, limits: SamplingLimits
) -> types.SampleResult:
    """On a prefill sampler too: it computes prompts, and goes on as far as it is asked to. Loads an adapter that was
    evicted meanwhile once more."""
    link = flight.spot.prompt_link
    try:
        return await link.sample(request, limits.sample_seconds)
    except AdapterNotLoaded:
        link.forget(request.adapter.name)
        await loaded(link, request.adapter, _end(limits))
        return await link.sample(request, limits.sample_seconds)


async def _split(request: pb.SampleRequest, attempt: int, flight: Flight, limits: SamplingLimits) -> types.SampleResult:
    adapter = request.adapter if request.HasField("adapter") else None
    first, rest = (Seat(link, adapter, limits) for link in flight.spot.links)
    asked = pb.SampleStreamRequest(sample=request)
    chunks = split_stream(asked, attempt, first, rest, _end(limits), flight.leave_prefill)
    async with aclosing(chunks):
        return collected([chunk async for chunk in chunks], request.body.num_samples)


def _end(limits: SamplingLimits) -> float:
    return asyncio.get_running_loop().time() + limits.sample_seconds


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
