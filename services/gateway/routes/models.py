"""Models: create, describe, unload; their checkpoints' facts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, MissingResource, UnknownId
from services.common.ids import parse_model_id
from services.common.tinker_path import SAMPLER_WEIGHTS, parse_checkpoint_id, parse_tinker_path
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.submit import Prepared, prepare, rejected, submit_create, submit_unload
from services.gateway.validation.base_models import match_pool
from services.gateway.validation.models import create_model as checked_create_model
from services.gateway.wire import bodies
from services.gateway.wire.json_body import decode


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/create_model", create_model),
        endpoint(gateway, "/get_info", get_info, audited=False),
        endpoint(gateway, "/unload_model", unload_model),
        endpoint(gateway, "/weights_info", weights_info, audited=False),
        endpoint(gateway, "/training_runs/{run_id}", training_run, ("GET",)),
        endpoint(
            gateway, "/training_runs/{run_id}/checkpoints/{kind}/{name}", delete_checkpoint, ("DELETE",), audited=True
        ),
    ]


async def create_model(call: Call) -> Response:
    body = await call.body()
    envelope = await call.decoded(body, bodies.CreateEnvelope)
    prepared = await _prepared(call, body, fresh=False)
    if prepared.command.rejected:  # a pool may have registered a moment ago
        prepared = await _prepared(call, body, fresh=True)
    reply = await submit_create(call, envelope.session_id, envelope.model_seq_id, prepared)
    return json_response({"request_id": reply.request_id, "model_id": reply.model_id})


async def _prepared(call: Call, body: bytes, *, fresh: bool) -> Prepared:
    pools = await call.gateway.facts.some_pools(fresh=fresh)
    return await call.gateway.offload.run(len(body), _prepare_create, body, pools)


def _prepare_create(body: bytes, pools: list[pb.PoolSummary]) -> Prepared:
    try:
        content = decode(body, bodies.CreateModel)
        facts = match_pool(content.base_model, pools)
        return prepare(types.Command(create_model=checked_create_model(content, facts)))
    except InvalidInput as error:
        # Any pool may keep the failed request; the first by name, so that a retry finds it.
        keeper = min(pools, key=lambda pool: pool.facts.pool).facts
        return rejected(types.Command(create_model=types.CreateModelBody(base_model=keeper.base_model)), error)


async def get_info(call: Call) -> Response:
    body = await call.json(bodies.ModelOnly)
    parse_model_id(body.model_id)
    info = await call.gateway.scheduler.get_model(call.tenant, body.model_id)
    facts = info.facts
    data = {"arch": facts.arch, "model_name": facts.base_model, "tokenizer_id": facts.tokenizer_path}
    return json_response(
        {
            "type": "get_info",
            "model_id": info.model_id or body.model_id,
            "model_data": {name: value for name, value in data.items() if value},
            "is_lora": True,
            "lora_rank": info.layout.rank,
            "model_name": facts.base_model,
        }
    )


async def unload_model(call: Call) -> Response:
    body = await call.json(bodies.ModelOnly)
    parse_model_id(body.model_id)
    reply = await submit_unload(call, body.model_id)
    return json_response({"request_id": reply.request_id, "model_id": body.model_id})


async def weights_info(call: Call) -> Response:
    body = await call.json(bodies.WeightsPath)
    parse_tinker_path(body.tinker_path, "tinker_path")
    access = call.gateway.auth.access_digest(body.weights_access_token)
    info = await call.gateway.scheduler.get_weights_info(call.tenant, body.tinker_path, access)
    return json_response(
        {
            "base_model": info.base_model,
            "is_lora": True,
            "lora_rank": info.layout.rank,
            "train_unembed": info.layout.train_unembed,
            "train_mlp": info.layout.train_mlp,
            "train_attn": info.layout.train_attn,
        }
    )


async def training_run(call: Call) -> Response:
    run_id = _run_id(call)
    run = await call.gateway.scheduler.get_training_run(call.tenant, run_id)
    answer: dict[str, Any] = {
        "training_run_id": run.training_run_id,
        "base_model": run.base_model,
        "model_owner": run.tenant_id,
        "is_lora": True,
        "lora_rank": run.layout.rank,
        "corrupted": run.corrupted,
        "last_request_time": _time(run.last_request_unix_ms),
        "user_metadata": _metadata(run.user_metadata_json),
    }
    for name in ("last_checkpoint", "last_sampler_checkpoint"):
        answer[name] = _checkpoint(getattr(run, name)) if run.HasField(name) else None
    return json_response(answer)


async def delete_checkpoint(call: Call) -> Response:
    run_id = _run_id(call)
    path = parse_checkpoint_id(run_id, f"{call.path('kind')}/{call.path('name')}")
    await call.gateway.scheduler.delete_checkpoint(call.tenant, run_id, path.checkpoint_id)
    return Response(status_code=204)


def _run_id(call: Call) -> str:
    run_id = call.path("run_id")
    try:
        parse_model_id(run_id)
    except UnknownId as error:
        raise MissingResource(f"training run {run_id[:200]!r} does not exist") from error
    return run_id


def _checkpoint(info: pb.CheckpointInfo) -> dict[str, Any]:
    kind = "sampler" if info.checkpoint_id.startswith(f"{SAMPLER_WEIGHTS}/") else "training"
    return {
        "checkpoint_id": info.checkpoint_id,
        "checkpoint_type": kind,
        "time": _time(info.created_unix_ms),
        "tinker_path": info.path,
        "size_bytes": info.size_bytes,
        "public": False,
        "user_metadata": _metadata(info.user_metadata_json),
        "expires_at": _time(info.expires_unix_ms) if info.expires_unix_ms else None,
    }


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat()


def _metadata(text: str) -> Any:
    return msgspec.json.decode(text) if text else None
