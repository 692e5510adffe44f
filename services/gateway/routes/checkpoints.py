"""Training runs and their checkpoints: look, publish, limit their time, copy, delete."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import catalog_pb2 as pb
from tinkermesh.v1 import scheduler_pb2

from services.common.errors import InvalidInput, MissingResource, UnknownId
from services.common.ids import is_session_id, parse_model_id
from services.common.tinker_path import TinkerPath, parse_checkpoint_id, parse_tinker_path
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.sdk import client_version
from services.gateway.validation.artifacts import ttl
from services.gateway.wire import catalog_bodies as bodies
from services.gateway.wire import render_catalog as render
from services.gateway.wire.queries import LARGEST_PAGE, Window, check_scope, window

RUNS_PER_PAGE = 20
CHECKPOINTS_PER_PAGE = 100
CHECKPOINTS_OF_A_RUN = 10_000
BYTES_OF_A_RUN = 64 << 20
"""A list without a window ends at either, the newest first; its cursor tells how many there are."""

KNOWS_EXPORTS = (0, 30, 4)
"""The oldest tested SDK whose checkpoints may be of type external."""

CHECKPOINT = "/training_runs/{run_id}/checkpoints/{kind}/{name}"


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/training_runs", list_training_runs, ("GET",)),
        endpoint(gateway, "/training_runs/{run_id}", training_run, ("GET",)),
        endpoint(gateway, "/training_runs/{run_id}/checkpoints", list_run_checkpoints, ("GET",)),
        endpoint(gateway, "/checkpoints", list_checkpoints, ("GET",)),
        endpoint(gateway, CHECKPOINT, delete_checkpoint, ("DELETE",)),
        endpoint(gateway, f"{CHECKPOINT}/publish", publish, ("POST",)),
        endpoint(gateway, f"{CHECKPOINT}/publish", unpublish, ("DELETE",)),
        endpoint(gateway, f"{CHECKPOINT}/ttl", set_ttl, ("PUT",)),
        endpoint(gateway, "/copy_weights", copy_weights),
    ]


async def list_training_runs(call: Call) -> Response:
    query = call.request.query_params
    check_scope(query)
    page = window(query, RUNS_PER_PAGE)
    total, runs = await call.gateway.catalog.training_runs(
        pb.ListTrainingRunsRequest(
            tenant_id=call.tenant, project_id=query.get("project_id", ""), offset=page.offset, limit=page.limit
        )
    )
    shown = [render.training_run(run) for run in runs]
    return json_response({"training_runs": shown, "cursor": render.cursor(page, total)})


async def training_run(call: Call) -> Response:
    check_scope(call.request.query_params)
    run = await call.gateway.scheduler.get_training_run(call.tenant, _run_id(call))
    return json_response(render.training_run(run))


async def list_run_checkpoints(call: Call) -> Response:
    run_id, query = _run_id(call), call.request.query_params
    if "limit" in query or "offset" in query:
        page = window(query, CHECKPOINTS_PER_PAGE)
        return _checkpoints(call, page, *await _page(call, run_id, page))
    total, found = await _newest(call, run_id)
    return _checkpoints(call, Window(0, CHECKPOINTS_OF_A_RUN), total, found)


async def _newest(call: Call, run_id: str) -> tuple[int, list[scheduler_pb2.CheckpointInfo]]:
    """In pages. What is saved meanwhile moves them: a checkpoint that comes twice is shown once."""
    found: dict[str, scheduler_pb2.CheckpointInfo] = {}
    total, offset, size = 1, 0, 0
    while offset < min(total, CHECKPOINTS_OF_A_RUN) and size < BYTES_OF_A_RUN:
        total, page = await _page(call, run_id, Window(offset, LARGEST_PAGE))
        if not page:
            break
        found.update((one.path, one) for one in page)
        offset, size = offset + len(page), size + sum(one.ByteSize() for one in page)
    return total, list(found.values())


async def list_checkpoints(call: Call) -> Response:
    page = window(call.request.query_params, CHECKPOINTS_PER_PAGE)
    return _checkpoints(call, page, *await _page(call, "", page))


async def _page(call: Call, run_id: str, page: Window) -> tuple[int, list[scheduler_pb2.CheckpointInfo]]:
    request = pb.ListCheckpointsRequest(tenant_id=call.tenant, training_run_id=run_id)
    request.offset, request.limit = page
    return await call.gateway.catalog.checkpoints(request)


def _checkpoints(call: Call, page: Window, total: int, found: list[scheduler_pb2.CheckpointInfo]) -> Response:
    show = render.checkpoint if _knows_exports(call) else render.checkpoint_of_old_sdk
    shown = [show(one) for one in found]
    return json_response({"checkpoints": shown, "cursor": render.cursor(page, total)})


def _knows_exports(call: Call) -> bool:
    """Also of clients that are no SDK."""
    version = client_version(call.request.headers)
    return version is None or version >= KNOWS_EXPORTS


async def delete_checkpoint(call: Call) -> Response:
    path = checkpoint_path(call)
    await call.gateway.scheduler.delete_checkpoint(call.tenant, path.model_id, path.checkpoint_id)
    return Response(status_code=204)


async def publish(call: Call) -> Response:
    await call.gateway.catalog.set_public(call.tenant, str(checkpoint_path(call)), True)
    return Response(status_code=204)


async def unpublish(call: Call) -> Response:
    await call.gateway.catalog.set_public(call.tenant, str(checkpoint_path(call)), False)
    return Response(status_code=204)


async def set_ttl(call: Call) -> Response:
    path = checkpoint_path(call)
    body = await call.json(bodies.Ttl)
    await call.gateway.catalog.set_ttl(call.tenant, str(path), ttl(body.ttl_seconds))
    return Response(status_code=204)


async def copy_weights(call: Call) -> Response:
    body = await call.json(bodies.CopyWeights)
    token = body.weights_access_token or call.header("x-tinker-weights-access-token")
    request = pb.CopyCheckpointRequest(
        tenant_id=call.tenant,
        idempotency_key=call.header("x-idempotency-key"),
        source_path=str(parse_tinker_path(body.source_path, "source_path")),
        weights_access_digest=call.gateway.auth.access_digest(token),
        ttl_seconds=ttl(body.ttl_seconds),
    )
    _set_destination(request, body)
    return json_response({"tinker_path": await call.gateway.catalog.copy(request)})


def _set_destination(request: pb.CopyCheckpointRequest, body: bodies.CopyWeights) -> None:
    in_session = body.session_id is not None and body.model_seq_id is not None
    if in_session == (body.destination_project_id is not None):
        raise InvalidInput("copy_weights needs either destination_project_id, or session_id and model_seq_id")
    if body.session_id is None or body.model_seq_id is None:
        request.project_id = body.destination_project_id or ""
        return
    if not is_session_id(body.session_id):
        raise InvalidInput(f"session_id: {body.session_id[:64]!r} is not a session of this mesh")
    request.session_id, request.model_seq_id = body.session_id, body.model_seq_id


def checkpoint_path(call: Call) -> TinkerPath:
    """Raises InvalidInput, MissingResource."""
    return parse_checkpoint_id(_run_id(call), f"{call.path('kind')}/{call.path('name')}")


def _run_id(call: Call) -> str:
    run_id = call.path("run_id")
    try:
        parse_model_id(run_id)
    except UnknownId as error:
        raise MissingResource(f"training run {run_id[:200]!r} does not exist") from error
    return run_id
