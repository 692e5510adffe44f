"""The ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from services.common.errors import NotSupported
from services.common.metrics import OTHER
from services.gateway import metrics
from services.gateway.errors import error_response
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.routes import (
    auth,
    batches,
    checkpoints,
    completions,
    console,
    downloads,
    futures,
    history,
    hosted_only,
    jobs,
    meta,
    models,
    openai,
    sampling,
    sessions,
    training,
)
from services.gateway.settings import Settings

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]

# The busiest first: routes are tried in order.
_AREAS = (
    futures,
    completions,
    batches,
    training,
    sampling,
    sessions,
    models,
    checkpoints,
    downloads,
    history,
    openai,
    jobs,
    auth,
    meta,
    console,
    hosted_only,
)


def create_app(settings: Settings, on_start: Callable[[Gateway], None] | None = None) -> Starlette:
    """`on_start` is handed the running Gateway once the application has started."""
    app = Starlette(
        exception_handlers={404: _not_supported, 405: _not_supported, HTTPException: _http_error},
        lifespan=_lifespan(settings, on_start),
    )
    app.router.redirect_slashes = False
    return app


def _lifespan(settings: Settings, on_start: Callable[[Gateway], None] | None) -> Lifespan:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        gateway = Gateway(settings)
        for area in _AREAS:
            app.router.routes.extend(area.routes(gateway))
        gateway.start()
        if on_start is not None:
            on_start(gateway)
        try:
            yield
        finally:
            await gateway.stop()

    return lifespan


async def _not_supported(request: Request, error: Exception) -> Response:
    route = f"{request.method} {request.url.path}"
    failed = openai.SURFACE.failed if request.url.path.startswith(openai.SURFACE.prefix) else error_response
    with metrics.request(OTHER) as answer:
        response = failed(NotSupported(f"{route[:300]} is not supported by this mesh"))
        metrics.answered(answer, response)
        return response


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    detail = error.detail if isinstance(error, HTTPException) else str(error)
    return json_response({"detail": detail, "error": "http", "category": "user"}, status)
