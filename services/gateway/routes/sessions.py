"""Sessions: create, keep alive, finish."""

from __future__ import annotations

import re

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Gone, UnknownId
from services.common.ids import is_session_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.wire import bodies
from services.gateway.wire.json_body import canonical_json

OLDEST_TESTED, NEWEST_TESTED = (0, 26, 2), (0, 38, 0)

_MAX_DETAIL_CHARACTERS = 4096


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/create_session", create_session),
        endpoint(gateway, "/session_heartbeat", session_heartbeat, begins_trace=False),
        endpoint(gateway, "/sessions/{session_id}/finish", finish_session),
    ]


async def create_session(call: Call) -> Response:
    body = await call.json(bodies.CreateSession)
    reply = await call.gateway.scheduler.create_session(
        pb.CreateSessionRequest(
            tenant_id=call.tenant,
            idempotency_key=call.header("x-idempotency-key"),
            tags=body.tags,
            user_metadata_json=canonical_json(body.user_metadata),
            sdk_version=body.sdk_version,
            display_name=body.display_name or "",
            project_id=body.project_id or "",
        )
    )
    answer = {"type": "create_session", "session_id": reply.session_id}
    if warning := version_warning(body.sdk_version):
        answer["warning_message"] = warning
    return json_response(answer)


def version_warning(sdk_version: str) -> str:
    """Not empty for an SDK outside the tested range; it is served all the same."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", sdk_version)
    if match is None:
        return ""
    version = tuple(int(part or 0) for part in match.groups())
    if OLDEST_TESTED <= version <= NEWEST_TESTED:
        return ""
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_TESTED, NEWEST_TESTED))
    return f"SDK {sdk_version[:40]} is outside the range this mesh is tested with ({oldest} to {newest})"


async def session_heartbeat(call: Call) -> Response:
    """410 only when the session is certainly gone; the SDK then stops beating for good."""
    body = await call.json(bodies.SessionId)
    if not is_session_id(body.session_id):
        raise Gone(f"session {body.session_id[:200]!r} is not one of this mesh")
    try:
        await call.gateway.scheduler.heartbeat(call.tenant, body.session_id)
    except UnknownId as error:
        raise Gone(error.message) from error
    return json_response({"type": "session_heartbeat"})


async def finish_session(call: Call) -> Response:
    body = await call.json(bodies.FinishSession)
    await call.gateway.scheduler.finish_session(
        pb.FinishSessionRequest(
            tenant_id=call.tenant,
            session_id=call.path("session_id"),
            reason=body.reason.type,
            detail=(body.detail or "")[:_MAX_DETAIL_CHARACTERS],
        )
    )
    return Response(status_code=204)
