"""Sessions: create, keep alive, finish."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Gone, UnknownId
from services.common.ids import is_session_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.sdk import Version, client_version, is_newer, version_of, version_warning
from services.gateway.wire import bodies
from services.gateway.wire.json_body import canonical_json, decode, unknown_fields, unknown_fields_ignored

_MAX_DETAIL_CHARACTERS = 4096
_NAMES, _NAME_CHARACTERS = 16, 64


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/create_session", create_session),
        endpoint(gateway, "/session_heartbeat", session_heartbeat, begins_trace=False),
        endpoint(gateway, "/sessions/{session_id}/finish", finish_session),
    ]


async def create_session(call: Call) -> Response:
    body, ignored = _new_session(await call.small_body(), client_version(call.request.headers))
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
    if warnings := [text for text in (version_warning(body.sdk_version), _ignored_text(ignored)) if text]:
        answer["warning_message"] = "; ".join(warnings)
    return json_response(answer)


def _new_session(raw: bytes, client: Version | None) -> tuple[bodies.CreateSession, list[str]]:
    """The body, and the fields of it that are ignored because the SDK is newer. Raises InvalidInput."""
    with unknown_fields_ignored(is_newer(client) or is_newer(version_of(decode(raw, bodies.SdkVersionOf).sdk_version))):
        body = decode(raw, bodies.CreateSession)
        return body, unknown_fields(raw, bodies.CreateSession)


def _ignored_text(fields: list[str]) -> str:
    shown = ", ".join(repr(name[:_NAME_CHARACTERS]) for name in fields[:_NAMES])
    return f"fields this mesh does not know are ignored: {shown}" if fields else ""


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
