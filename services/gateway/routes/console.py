"""The console: a page that reads, and the JSON it reads with the caller's key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from tinkermesh.v1 import console_pb2 as pb

from services.common.errors import NotSupported
from services.gateway import metrics
from services.gateway.console_files import HEADERS, PAGE, ConsoleFiles
from services.gateway.endpoint import Call, Handler, Surface, endpoint
from services.gateway.errors import error_response, internal_error_response
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.wire import render_console as render
from services.gateway.wire.queries import window

CONSOLE = "/console"
SURFACE = Surface(CONSOLE, error_response, internal_error_response)
RUNS_PER_PAGE, LARGEST_PAGE = 50, 100


def routes(gateway: Gateway) -> list[Route]:
    """None when it is switched off."""
    if not gateway.settings.console:
        return []
    files = ConsoleFiles()
    return [
        _api(gateway, "/runs", list_runs),
        _api(gateway, "/runs/{run_id}", get_run),
        _api(gateway, "/state", get_state),
        Route(CONSOLE, _static(CONSOLE, files, lambda _: PAGE)),
        Route(f"{CONSOLE}/", _to_the_page),
        Route(f"{CONSOLE}/static/{{file}}", _static(f"{CONSOLE}/static/{{file}}", files, _file_of)),
    ]


def _api(gateway: Gateway, path: str, handler: Handler) -> Route:
    """Polled by the page, so traced only inside a trace of its caller."""

    async def unstored(call: Call) -> Response:
        response = await handler(call)
        response.headers["cache-control"] = "no-store"
        return response

    return endpoint(gateway, f"/api{path}", unstored, ("GET",), begins_trace=False, surface=SURFACE)


async def list_runs(call: Call) -> Response:
    query = call.request.query_params
    page = window(query, RUNS_PER_PAGE, LARGEST_PAGE)
    request = pb.ListConsoleRunsRequest(
        tenant_id=call.tenant, text=query.get("text", ""), offset=page.offset, limit=page.limit
    )
    return json_response(render.runs(await call.gateway.console.runs(request)))


async def get_run(call: Call) -> Response:
    return json_response(render.details(await call.gateway.console.run(call.tenant, call.path("run_id"))))


async def get_state(call: Call) -> Response:
    return json_response(render.state(await call.gateway.console.state(call.tenant)))


def _static(
    route: str, files: ConsoleFiles, name: Callable[[Request], str]
) -> Callable[[Request], Awaitable[Response]]:
    """Asks for no key: the files are the same for everybody and hold nothing of anybody."""

    async def serve(request: Request) -> Response:
        with metrics.request(route) as answer:
            response = files.answer(name(request))
            if response is None:
                response = error_response(NotSupported("the console has no such file"))
            metrics.answered(answer, response)
            return response

    return serve


def _file_of(request: Request) -> str:
    return str(request.path_params["file"])


async def _to_the_page(request: Request) -> Response:
    """Relative: behind a proxy the page may have a prefix."""
    with metrics.request(f"{CONSOLE}/") as answer:
        response = RedirectResponse(f"..{CONSOLE}", 308, headers=dict(HEADERS))
        metrics.answered(answer, response)
        return response
