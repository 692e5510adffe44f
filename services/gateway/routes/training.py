"""Ordered commands of a model. A broken content fails in its turn; only a broken envelope is refused."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.ids import parse_model_id
from services.gateway.auth import Authenticator
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.submit import Prepared, prepare, rejected, submit_create, submit_training
from services.gateway.validation import artifacts
from services.gateway.validation.base_models import keeper_of_failed, match_pool
from services.gateway.validation.optimizer import adam_params, check_optimizer
from services.gateway.wire import bodies
from services.gateway.wire.json_body import canonical_json, decode


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/optim_step", optim_step),
        endpoint(gateway, "/save_weights", save_weights),
        endpoint(gateway, "/save_weights_for_sampler", save_weights_for_sampler),
        endpoint(gateway, "/save_weights_external", save_weights_external),
        endpoint(gateway, "/load_weights", load_weights),
    ]


async def optim_step(call: Call) -> Response:
    return await _ordered(call, lambda body: types.Command(optim_step=_optim_step(body)), _OPTIM_STEP)


async def save_weights(call: Call) -> Response:
    return await _ordered(
        call,
        lambda body: types.Command(save_weights=artifacts.save_weights(decode(body, bodies.SaveWeights))),
        types.Command(save_weights=types.SaveWeightsBody()),
    )


async def save_weights_for_sampler(call: Call) -> Response:
    return await _ordered(
        call,
        lambda body: types.Command(save_for_sampler=artifacts.save_for_sampler(decode(body, bodies.SaveForSampler))),
        types.Command(save_for_sampler=types.SaveForSamplerBody()),
    )


async def save_weights_external(call: Call) -> Response:
    return await _ordered(
        call,
        lambda body: types.Command(save_external=artifacts.save_external(decode(body, bodies.SaveExternal))),
        types.Command(save_external=types.SaveExternalBody()),
    )


async def load_weights(call: Call) -> Response:
    """Into a new model (session_id, model_seq_id) or into an existing one (model_id, seq_id)."""
    body = await call.body()
    envelope = await call.decoded(body, bodies.LoadEnvelope)
    if envelope.session_id is not None and envelope.model_seq_id is not None and envelope.model_id is None:
        prepared = await _prepared_create(call, body, fresh=False)
        if prepared.command.rejected:  # a pool may have registered a moment ago
            prepared = await _prepared_create(call, body, fresh=True)
        return _answer(await submit_create(call, envelope.session_id, envelope.model_seq_id, prepared))
    if envelope.model_id is not None and envelope.seq_id is not None and envelope.session_id is None:
        parse_model_id(envelope.model_id)
        prepared = await call.gateway.offload.run(len(body), _prepare_load, call.gateway.auth, body)
        return _answer(await submit_training(call, envelope.model_id, envelope.seq_id, prepared))
    raise InvalidInput("load_weights needs either session_id and model_seq_id, or model_id and seq_id (>= 1)")


_OPTIM_STEP = types.Command(optim_step=types.OptimStepBody())


async def _ordered(call: Call, build: Callable[[bytes], types.Command], kind: types.Command) -> Response:
    """Reads the envelope, builds the command (or its rejection of the same `kind`), submits it."""
    body = await call.body()
    envelope = await call.decoded(body, bodies.ModelEnvelope)
    parse_model_id(envelope.model_id)
    prepared = await call.gateway.offload.run(len(body), _prepare, build, body, kind)
    return _answer(await submit_training(call, envelope.model_id, envelope.seq_id, prepared))


def _prepare(build: Callable[[bytes], types.Command], body: bytes, kind: types.Command) -> Prepared:
    try:
        return prepare(build(body))
    except InvalidInput as error:
        return rejected(_copy(kind), error)


def _copy(command: types.Command) -> types.Command:
    copied = types.Command()
    copied.CopyFrom(command)
    return copied


def _answer(reply: pb.SubmitReply) -> Response:
    return json_response({"request_id": reply.request_id, "model_id": reply.model_id})


def _optim_step(body: bytes) -> types.OptimStepBody:
    kind = decode(body, bodies.OptimStepKind).optimizer_params
    if kind is not None:
        check_optimizer(kind.type, "optimizer_params")
    return types.OptimStepBody(adam=adam_params(decode(body, bodies.OptimStep)))


def _prepare_load(auth: Authenticator, body: bytes) -> Prepared:
    command = types.Command(load_weights=types.LoadWeightsBody())
    try:
        content = decode(body, bodies.LoadWeights)
        command.load_weights.path = artifacts.training_path(content.path)
    except InvalidInput as error:
        return rejected(command, error)
    command.load_weights.optimizer = content.optimizer
    command.load_weights.weights_access_digest = auth.access_digest(content.weights_access_token)
    return prepare(command)


async def _prepared_create(call: Call, body: bytes, *, fresh: bool) -> Prepared:
    pools = await call.gateway.facts.some_pools(fresh=fresh)
    return await call.gateway.offload.run(len(body), _prepare_create, call.gateway.auth, body, pools)


def _prepare_create(auth: Authenticator, body: bytes, pools: list[pb.PoolSummary]) -> Prepared:
    created = types.CreateFromCheckpointBody()
    try:
        content = decode(body, bodies.LoadWeights)
        created.path = artifacts.training_path(content.path)
        if content.optimizer_config is not None:
            check_optimizer(content.optimizer_config.type, "optimizer_config")
        if content.base_model is not None:
            created.base_model = match_pool(content.base_model, pools).base_model
        created.user_metadata_json = canonical_json(content.user_metadata)
    except InvalidInput as error:
        keeper = keeper_of_failed(pools)
        failed = types.CreateFromCheckpointBody(base_model=keeper.base_model)
        return rejected(types.Command(create_from_checkpoint=failed), error)
    created.optimizer = content.optimizer
    created.weights_access_digest = auth.access_digest(content.weights_access_token)
    return prepare(types.Command(create_from_checkpoint=created))
