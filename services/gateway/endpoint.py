"""The frame around every handler: authentication, trace, log ids, errors as answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.common import logs, telemetry
from services.common.errors import Busy, Forbidden, ServerError, TinkermeshError, Unauthenticated
from services.gateway import audit, metrics
from services.gateway.audit import Decision
from services.gateway.auth import NOBODY, Caller
from services.gateway.errors import category_of, error_response, internal_error_response
from services.gateway.gateway import Gateway
from services.gateway.http import read_body
from services.gateway.sdk import client_version, is_newer
from services.gateway.wire.json_body import decode, unknown_fields_ignored

log = logging.getLogger(__name__)

T = TypeVar("T")
PREFIX = "/api/v1"


class Call:
    """One authenticated request."""

    def __init__(self, gateway: Gateway, request: Request, caller: Caller, decision: Decision) -> None:
        self.gateway = gateway
        self.request = request
        self.caller = caller
        self.tenant = caller.tenant
        self.decision = decision

    async def body(self) -> bytes:
        """Raises TooLarge."""
        return await self._read(self.gateway.settings.max_body_bytes)

    async def json(self, kind: type[T]) -> T:
        """A whole small body as `kind`. Raises InvalidInput, TooLarge."""
        return await self.decoded(await self.small_body(), kind)

    async def small_body(self) -> bytes:
        """Raises TooLarge."""
        return await self._read(self.gateway.settings.max_small_body_bytes)

    async def decoded(self, body: bytes, kind: type[T]) -> T:
        """`body` as `kind`; off the event loop when it is large. Raises InvalidInput."""
        return await self.gateway.offload.run(len(body), decode, body, kind)

    async def _read(self, limit: int) -> bytes:
        return await read_body(self.request, limit, self.gateway.settings.body_timeout_seconds)

    def header(self, name: str) -> str:
        return self.request.headers.get(name, "")

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


_ALWAYS_AUDITED = (Unauthenticated, Forbidden, Busy)

Handler = Callable[[Call], Awaitable[Response]]


def endpoint(
    gateway: Gateway,
    path: str,
    handler: Handler,
    methods: Sequence[str] = ("POST",),
    *,
    begins_trace: bool = True,
    audited: bool | None = None,
    authenticate: bool = True,
    prefix: str = PREFIX,
) -> Route:
    """A route under `prefix` whose handler runs authenticated and whose failures are JSON answers.

    What clients send over and over, such as polls and heartbeats, is traced only inside a trace of theirs.
    `audited`: what it admits leaves an audit line. Without word all but GETs and what is not traced does;
    refusals of who calls, or how much, always do. A handler that does not `authenticate` checks a signed
    link itself; its call has no tenant.
    """
    keeps = (begins_trace and tuple(methods) != ("GET",)) if audited is None else audited
    frame = _Frame(gateway, prefix + path, handler, begins_trace, keeps, authenticate)
    return Route(frame.route, frame.serve, methods=list(methods))


@dataclass(frozen=True, slots=True)
class _Frame:
    """See `endpoint`."""

    gateway: Gateway
    route: str
    handler: Handler
    begins_trace: bool
    audited: bool
    authenticate: bool

    async def serve(self, request: Request) -> Response:
        name, attributes = f"{request.method} {self.route}", {"http.route": self.route}
        span = telemetry.server_span(name, request.headers, attributes, begin=self.begins_trace)
        with metrics.request(self.route) as answer, span:
            response = await self._answer(request)
            metrics.answered(answer, response)
            _note_status(response.status_code)
            return response

    async def _answer(self, request: Request) -> Response:
        decision = Decision(f"{request.method} {self.route}")
        try:
            response = await self._handled(request, decision)
            if self.audited:
                audit.admitted(decision)
            return response
        except TinkermeshError as error:
            metrics.refused(error.code, category_of(error))
            if self.audited or isinstance(error, _ALWAYS_AUDITED):
                audit.refused(decision, error)
            return _failed(request, error)
        except Exception:  # noqa: BLE001 - the process boundary
            log.exception("unexpected error in %s %s", request.method, self.route)
            metrics.refused("internal", "server")
            return internal_error_response()

    async def _handled(self, request: Request, decision: Decision) -> Response:
        caller = await self.gateway.auth.caller(request.headers) if self.authenticate else NOBODY
        decision.tenant, decision.key_id, decision.label = caller.tenant, caller.key_id, caller.label
        newer = is_newer(client_version(request.headers))
        with logs.bind(tenant_id=caller.tenant), unknown_fields_ignored(newer):
            return await self.handler(Call(self.gateway, request, caller, decision))


def _note_status(status: int) -> None:
    telemetry.annotate({"http.response.status_code": status})
    if status >= 500:
        telemetry.failed(f"HTTP {status}")


def _failed(request: Request, error: TinkermeshError) -> Response:
    if isinstance(error, ServerError):
        log.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response(error)
