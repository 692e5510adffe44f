"""The frame around every handler: authentication, trace, log ids, errors as answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.common import logs, telemetry
from services.common.errors import ServerError, TinkermeshError
from services.gateway.errors import error_response, internal_error_response
from services.gateway.gateway import Gateway
from services.gateway.http import read_body
from services.gateway.wire.json_body import decode

log = logging.getLogger(__name__)

T = TypeVar("T")
PREFIX = "/api/v1"


class Call:
    """One authenticated request."""

    def __init__(self, gateway: Gateway, request: Request, tenant: str) -> None:
        self.gateway = gateway
        self.request = request
        self.tenant = tenant

    async def body(self) -> bytes:
        """Raises TooLarge."""
        settings = self.gateway.settings
        return await read_body(self.request, settings.max_body_bytes, settings.body_timeout_seconds)

    async def json(self, kind: type[T]) -> T:
        """The whole body as `kind`. Raises InvalidInput."""
        body = await self.body()
        return await self.gateway.offload.run(len(body), decode, body, kind)

    def header(self, name: str) -> str:
        return self.request.headers.get(name, "")

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])


Handler = Callable[[Call], Awaitable[Response]]


def endpoint(gateway: Gateway, path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> Route:
    """A route under /api/v1 whose handler runs authenticated and whose failures are JSON answers."""
    full = PREFIX + path

    async def serve(request: Request) -> Response:
        with telemetry.server_span(f"{request.method} {full}", request.headers, {"http.route": full}):
            try:
                tenant = gateway.auth.tenant_of(request.headers)
                with logs.bind(tenant_id=tenant):
                    return await handler(Call(gateway, request, tenant))
            except TinkermeshError as error:
                return _failed(request, error)
            except Exception:  # noqa: BLE001 - the process boundary
                log.exception("unexpected error in %s %s", request.method, full)
                return internal_error_response()

    return Route(full, serve, methods=list(methods))


def _failed(request: Request, error: TinkermeshError) -> Response:
    if isinstance(error, ServerError):
        log.warning("%s %s: %s", request.method, request.url.path, error.message)
    return error_response(error)
