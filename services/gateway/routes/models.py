"""Models: create, describe, unload; what a checkpoint needs to be loaded."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.ids import parse_model_id
from services.common.tinker_path import parse_tinker_path
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.submit import Prepared, prepare, rejected, submit_create, submit_unload
from services.gateway.validation.base_models import keeper_of_failed, match_pool
from services.gateway.validation.models import create_model as checked_create_model
from services.gateway.wire import bodies
from services.gateway.wire.json_body import decode


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/create_model", create_model),
        endpoint(gateway, "/get_info", get_info, audited=False),
        endpoint(gateway, "/unload_model", unload_model),
        endpoint(gateway, "/weights_info", weights_info, audited=False),
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
        keeper = keeper_of_failed(pools)
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
