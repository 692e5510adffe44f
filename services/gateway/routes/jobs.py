"""Jobs: batches of sampling tasks that outlive every process, and go on from where others ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import InvalidInput, TinkermeshError
from services.common.ids import parse_job_id
from services.gateway.endpoint import Call, Surface, endpoint
from services.gateway.errors import error_body, error_response, internal_error_response
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.places import Places
from services.gateway.settings import Limits
from services.gateway.sse import EventStream, event
from services.gateway.validation.jobs import job_tasks
from services.gateway.wire import job_bodies as bodies
from services.gateway.wire import render_job as render
from services.gateway.wire.json_body import check_parts, decode
from services.gateway.wire.queries import window
from services.gateway.wire.render_catalog import cursor

CONTROL = Surface("/v1/control", error_response, internal_error_response)
JOBS_PER_PAGE = 20
RESULTS_PER_PAGE = 100
HEARTBEAT_SECONDS = 5.0
MOST_WATCHES = 512
WATCHES_PER_TENANT = 64
_NAMES = ("state", "name")


def routes(gateway: Gateway) -> list[Route]:
    places = Places("watched jobs", WATCHES_PER_TENANT, MOST_WATCHES)
    route = partial(endpoint, gateway, surface=CONTROL)
    return [
        route("/jobs", create_job),
        route("/jobs", list_jobs, ("GET",)),
        route("/jobs/{job_id}", get_job, ("GET",), begins_trace=False),  # polled
        route("/jobs/{job_id}", delete_job, ("DELETE",)),
        route("/jobs/{job_id}/cancel", cancel_job),
        route("/jobs/{job_id}/results", job_results, ("GET",)),
        route("/jobs/{job_id}/events", partial(job_events, places), ("GET",)),
    ]


async def create_job(call: Call) -> Response:
    call.decision.op = "create_job"
    body = await call.body()
    name, base_model, tasks = await call.gateway.offload.run(len(body), _prepare, body, call.gateway.limits)
    header = pb.CreateJobHeader(
        tenant_id=call.tenant, idempotency_key=call.header("x-idempotency-key"), name=name, base_model=base_model
    )
    job = await call.gateway.jobs.create(header, tasks)
    call.decision.request_id = job.job_id
    return json_response(render.job(job), 200 if job.repeated else 201)


def _prepare(body: bytes, limits: Limits) -> tuple[str, str, list[pb.JobTask]]:
    check_parts(body, limits.max_parts)
    if body.lstrip()[:1] == b"[":
        return job_tasks(decode(body, list[bodies.JobTask]), limits)
    return job_tasks(decode(body, bodies.Job), limits)


async def list_jobs(call: Call) -> Response:
    query = call.request.query_params
    page = window(query, JOBS_PER_PAGE)
    asked = {name: query.get(name, "") for name in _NAMES}
    request = pb.ListJobsRequest(tenant_id=call.tenant, offset=page.offset, limit=page.limit, **asked)
    total, found = await call.gateway.jobs.page(request)
    return json_response({"jobs": [render.job(one) for one in found], "cursor": cursor(page, total)})


async def get_job(call: Call) -> Response:
    return json_response(render.job(await call.gateway.jobs.get(call.tenant, _job_id(call))))


async def cancel_job(call: Call) -> Response:
    call.decision.op, call.decision.request_id = "cancel_job", _job_id(call)
    return json_response(render.job(await call.gateway.jobs.cancel(call.tenant, _job_id(call))))


async def delete_job(call: Call) -> Response:
    call.decision.op, call.decision.request_id = "delete_job", _job_id(call)
    await call.gateway.jobs.delete(call.tenant, _job_id(call))
    return Response(status_code=204)


async def job_results(call: Call) -> Response:
    page = window(call.request.query_params, RESULTS_PER_PAGE)
    if page.offset > 0xFFFFFFFF:
        raise InvalidInput(f"offset: {page.offset} is behind the last task of any job")
    request = pb.JobResultsRequest(tenant_id=call.tenant, job_id=_job_id(call), offset=page.offset, limit=page.limit)
    results, behind, tasks = await call.gateway.jobs.results(request)
    more = behind if behind < tasks else None
    answer = {"results": [msgspec.Raw(data) for data in results], "next_offset": more, "total_tasks": tasks}
    return json_response(answer)


async def job_events(places: Places, call: Call) -> Response:
    """Server-sent events: `job` at each change, until it has ended. The first is there or the answer is an error."""
    with ExitStack() as held:
        held.enter_context(places.held_by(call.tenant))
        changes = call.gateway.jobs.watch(call.tenant, _job_id(call), HEARTBEAT_SECONDS)
        first = await anext(changes)
        return EventStream(_events(call.gateway, first, changes), held.pop_all())


async def _events(
    gateway: Gateway, first: pb.Job | None, changes: AsyncIterator[pb.Job | None]
) -> AsyncIterator[bytes]:
    """A gateway that stops ends its streams: the client watches again, at another one."""
    yield _event(first)
    try:
        async for job in changes:
            yield _event(job)
            if gateway.hub.draining:
                return
    except TinkermeshError as error:
        yield event(error_body(error), "error")


def _event(job: pb.Job | None) -> bytes:
    if job is None:
        return b": nothing new\n\n"
    return event(render.job(job), "job")


def _job_id(call: Call) -> str:
    """Raises MissingResource."""
    return str(parse_job_id(call.path("job_id")))
