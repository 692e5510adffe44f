"""The long poll, and cancelling."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs
from services.common.errors import ContractViolation, Forbidden, Gone, Pending, Unavailable, UnknownId
from services.common.ids import parse_request_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import accepts_protobuf, json_bytes_response, json_response, protobuf_response
from services.gateway.places import Places
from services.gateway.wire import bodies
from services.gateway.wire.render import render

# With the poll before it, well within the SDK's own 45 s.
_FETCH_SECONDS = 8.0


def routes(gateway: Gateway) -> list[Route]:
    polls = Places("polls", gateway.settings.max_polls_per_tenant)

    async def retrieve_future(call: Call) -> Response:
        with polls.held_by(call.tenant):
            return await _retrieve(call)

    return [
        endpoint(gateway, "/retrieve_future", retrieve_future, begins_trace=False),
        endpoint(gateway, "/cancel_future", cancel_future),
    ]


async def _retrieve(call: Call) -> Response:
    request_id = (await call.json(bodies.RequestOnly)).request_id
    _check_request_id(request_id)
    with logs.bind(request_id=request_id):
        try:
            event = await call.gateway.hub.poll(call.tenant, request_id, call.gateway.settings.long_poll_seconds)
            if event.state == pb.WATCH_STATE_PENDING:
                return _try_again(request_id, event.queue_state, event.queue_state_reason)
            result = await _result(call, request_id, event)
        except UnknownId as error:
            raise Gone(error.message) from error
        except (Pending, Unavailable) as error:
            return _try_again(request_id, "active", error.message)
        return await _answer(call, result)


def _check_request_id(request_id: str) -> None:
    try:
        parse_request_id(request_id)
    except UnknownId as error:
        raise Gone(error.message) from error


async def _result(call: Call, request_id: str, event: pb.WatchEvent) -> types.Result:
    match event.state:
        case pb.WATCH_STATE_FOREIGN:
            raise Forbidden(f"request {request_id} belongs to another account")
        case pb.WATCH_STATE_UNKNOWN:
            raise Gone(f"request {request_id} is unknown or its result has expired; send the operation again")
        case pb.WATCH_STATE_SETTLED if event.HasField("result"):
            return event.result
        case pb.WATCH_STATE_SETTLED:
            return await call.gateway.scheduler.get_result(call.tenant, request_id, _FETCH_SECONDS)
        case _:
            raise ContractViolation(f"the scheduler answered request {request_id} with no state")


async def _answer(call: Call, result: types.Result) -> Response:
    rendered = await call.gateway.offload.run(
        result.ByteSize(),
        lambda: render(
            result, protobuf=accepts_protobuf(call.request), request_type=call.header("x-tinker-request-type")
        ),
    )
    return protobuf_response(rendered.content) if rendered.protobuf else json_bytes_response(rendered.content)


def _try_again(request_id: str, queue_state: str, reason: str) -> Response:
    """408: the SDK polls again at once and quietly."""
    answer = {"type": "try_again", "request_id": request_id, "queue_state": queue_state or "active"}
    if reason:
        answer["queue_state_reason"] = reason
    return json_response(answer, 408)


async def cancel_future(call: Call) -> Response:
    """Only samples are cancelled; an unknown id is nothing to cancel."""
    request_id = (await call.json(bodies.RequestOnly)).request_id
    try:
        parse_request_id(request_id)
        await call.gateway.scheduler.cancel(call.tenant, request_id)
    except (UnknownId, Gone):
        pass
    return json_response({})
