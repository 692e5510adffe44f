"""retrieve_futures: one long poll for all samples of one client of a sampling session."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.ids import CompletionsWait, parse_sampling_session_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.places import Places
from services.gateway.wire import bodies


def routes(gateway: Gateway) -> list[Route]:
    polls = Places("polls", gateway.settings.max_polls_per_tenant)

    async def retrieve_futures(call: Call) -> Response:
        with polls.held_by(call.tenant):
            return await _retrieve(call)

    return [endpoint(gateway, "/retrieve_futures", retrieve_futures, begins_trace=False)]


async def _retrieve(call: Call) -> Response:
    """What is behind the cursor at once; else what comes within the long poll, or nothing."""
    body = await call.json(bodies.RetrieveFutures)
    parse_sampling_session_id(body.target.sampling_session_id)
    reply = await _list(call, body, body.retrieved_request_ids)
    seconds = _seconds(call, body.timeout)
    if not reply.completions and seconds > 0:
        target = body.target
        wait = CompletionsWait(target.sampling_session_id, target.cloned_sampler_id, body.prev_cursor)
        event = await call.gateway.hub.reached(call.tenant, wait, seconds)
        if event.state != pb.WATCH_STATE_PENDING:
            reply = await _list(call, body, [])
    completions = [_completion(one) for one in reply.completions]
    return json_response({"completions": completions, "cursor": reply.cursor})


def _seconds(call: Call, asked: float | None) -> float:
    longest = call.gateway.settings.long_poll_seconds
    return longest if asked is None else min(asked, longest)


async def _list(call: Call, body: bodies.RetrieveFutures, retrieved: list[str]) -> pb.ListCompletionsReply:
    return await call.gateway.scheduler.list_completions(
        pb.ListCompletionsRequest(
            tenant_id=call.tenant,
            sampling_session_id=body.target.sampling_session_id,
            clone=body.target.cloned_sampler_id,
            after=body.prev_cursor,
            retrieved_request_ids=retrieved,
            limit=call.gateway.settings.completions_per_answer,
        )
    )


def _completion(one: pb.Completion) -> dict[str, Any]:
    if one.failed:
        return {"state": "failed", "request_id": one.request_id}
    return {
        "state": "finished",
        "request_id": one.request_id,
        "response_payload_uncompressed_size": one.result_bytes,
    }
