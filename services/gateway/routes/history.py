"""Sessions as their owner looks back on them."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import catalog_pb2 as pb

from services.common.errors import InvalidInput, MissingResource
from services.common.ids import is_session_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.wire import catalog_bodies as bodies
from services.gateway.wire import render_catalog as render
from services.gateway.wire.queries import check_scope, window

SESSIONS_PER_PAGE = 20
_STATUSES = {"client_finished": "finished"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/sessions", list_sessions, ("GET",)),
        endpoint(gateway, "/sessions/search", search_sessions, audited=False),
        endpoint(gateway, "/sessions/{session_id}", get_session, ("GET",)),
        endpoint(gateway, "/sessions/{session_id}/project", assign_project, ("PUT",)),
    ]


async def list_sessions(call: Call) -> Response:
    query = call.request.query_params
    check_scope(query)
    page = window(query, SESSIONS_PER_PAGE)
    request = pb.ListTenantSessionsRequest(tenant_id=call.tenant, offset=page.offset, limit=page.limit)
    reply = await call.gateway.catalog.sessions(request)
    return json_response({"sessions": list(reply.session_ids), "cursor": render.cursor(page, reply.total_count)})


async def get_session(call: Call) -> Response:
    check_scope(call.request.query_params)
    return json_response(render.session(await call.gateway.catalog.session(call.tenant, _session_id(call))))


async def assign_project(call: Call) -> Response:
    session_id = _session_id(call)
    body = await call.json(bodies.Project)
    await call.gateway.catalog.assign_project(call.tenant, session_id, body.project_id)
    return Response(status_code=204)


async def search_sessions(call: Call) -> Response:
    body = await call.json(bodies.SearchSessions)
    if body.owner.type == "user" and call.tenant not in body.owner.owner_urns:
        return json_response({"sessions": [], "next_cursor": None})
    reply = await call.gateway.catalog.search_sessions(_search(call.tenant, body))
    found = [render.session_summary(one) for one in reply.sessions]
    return json_response({"sessions": found, "next_cursor": _next(reply)})


def _search(tenant: str, body: bodies.SearchSessions) -> pb.SearchSessionsRequest:
    request = pb.SearchSessionsRequest(
        tenant_id=tenant,
        session_id=body.session_id or "",
        display_name=body.display_name or "",
        user_metadata=body.user_metadata,
        project_ids=body.project_ids or (),
        limit=body.limit,
    )
    for status in body.statuses or ():
        wanted = _STATUSES.get(status.type, status.type)
        request.statuses.add(status=wanted, finish_reasons=status.reasons or ())
    if body.cursor is not None:
        if not is_session_id(body.cursor.last_session_id):
            raise InvalidInput("cursor: pass the next_cursor of an answer back as it came")
        request.before_unix_ms = _unix_ms(body.cursor.last_created_at)
        request.before_session_id = body.cursor.last_session_id
    return request


def _unix_ms(time: datetime) -> int:
    """Exactly: a float's rounding could skip or repeat a session."""
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _next(reply: pb.SearchSessionsReply) -> dict[str, str] | None:
    if not reply.next_session_id:
        return None
    return {"last_created_at": render.time_text(reply.next_unix_ms), "last_session_id": reply.next_session_id}


def _session_id(call: Call) -> str:
    session_id = call.path("session_id")
    if not is_session_id(session_id):
        raise MissingResource(f"session {session_id[:64]!r} is not one of this mesh")
    return session_id
