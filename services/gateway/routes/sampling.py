"""Sampling sessions and samples."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.ids import parse_sampling_session_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.settings import Limits
from services.gateway.submit import Prepared, prepare, rejected, submit_sample
from services.gateway.validation import sampling
from services.gateway.validation.artifacts import sampler_path
from services.gateway.validation.base_models import match_pool
from services.gateway.wire import bodies
from services.gateway.wire.json_body import check_parts, decode

_COUNT_BYTES = 20


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/create_sampling_session", create_sampling_session),
        endpoint(gateway, "/samplers/{sampling_session_id}", get_sampler, ("GET",)),
        endpoint(gateway, "/join_sampling_session", join_sampling_session),
        endpoint(gateway, "/asample", asample),
    ]


async def create_sampling_session(call: Call) -> Response:
    body = await call.json(bodies.CreateSamplingSession)
    if body.base_model is None and body.model_path is None:
        raise InvalidInput("create_sampling_session needs base_model or model_path")
    request = pb.CreateSamplingSessionRequest(
        tenant_id=call.tenant,
        session_id=body.session_id,
        sampling_session_seq_id=body.sampling_session_seq_id,
    )
    if body.model_path is not None:
        request.model_path = sampler_path(body.model_path)
        await _check_base_model(call, body)
    else:
        request.base_model = await _canonical_base_model(call, body.base_model or "")
    reply = await call.gateway.scheduler.create_sampling_session(request)
    return json_response({"type": "create_sampling_session", "sampling_session_id": reply.sampling_session_id})


async def _check_base_model(call: Call, body: bodies.CreateSamplingSession) -> None:
    if body.base_model is None:
        return
    asked = await _canonical_base_model(call, body.base_model)
    info = await call.gateway.scheduler.get_weights_info(call.tenant, body.model_path or "", "")
    if info.base_model != asked:
        raise InvalidInput(
            f"base_model {asked!r} is not the one {body.model_path!r} was made from ({info.base_model!r})"
        )


async def _canonical_base_model(call: Call, name: str) -> str:
    facts = call.gateway.facts
    try:
        return match_pool(name, await facts.some_pools()).base_model
    except InvalidInput:  # a pool may have registered a moment ago
        return match_pool(name, await facts.some_pools(fresh=True)).base_model


async def get_sampler(call: Call) -> Response:
    sampling_session_id = call.path("sampling_session_id")
    parse_sampling_session_id(sampling_session_id)
    reply = await call.gateway.scheduler.get_sampler(call.tenant, sampling_session_id)
    answer = {"sampler_id": reply.sampler_id or sampling_session_id, "base_model": reply.base_model}
    if reply.model_path:
        answer["model_path"] = reply.model_path
    return json_response(answer)


async def join_sampling_session(call: Call) -> Response:
    """A number for one more client of the session; its repeats over HTTP carry one idempotency key."""
    sampling_session_id = (await call.json(bodies.SamplingSessionId)).sampling_session_id
    parse_sampling_session_id(sampling_session_id)
    number = await call.gateway.scheduler.join_sampling_session(
        pb.JoinSamplingSessionRequest(
            tenant_id=call.tenant,
            sampling_session_id=sampling_session_id,
            idempotency_key=call.header("x-idempotency-key"),
        )
    )
    return json_response({"type": "join_sampling_session", "client_counter": number})


async def asample(call: Call) -> Response:
    gateway = call.gateway
    body = await call.body()
    envelope = await call.decoded(body, bodies.SampleEnvelope)
    parse_sampling_session_id(envelope.sampling_session_id)
    sampler = await gateway.facts.of_sampler(call.tenant, envelope.sampling_session_id)
    prepared = await gateway.offload.run(len(body), _prepare, body, sampler, gateway.limits)
    reply = await submit_sample(call, envelope.sampling_session_id, envelope.seq_id, prepared)
    return json_response({"request_id": reply.request_id, "sample_sequence_ids": list(reply.sample_sequence_ids)})


def _prepare(body: bytes, sampler: sampling.Sampler, limits: Limits) -> Prepared:
    try:
        check_parts(body, limits.max_parts)
        return prepare(types.Command(sample=sampling.sample(decode(body, bodies.Sample), sampler, limits)))
    except InvalidInput as error:
        failed = types.SampleBody(num_samples=announced_samples(body, limits))
        return rejected(types.Command(sample=failed), error)


def announced_samples(body: bytes, limits: Limits) -> int:
    """How many sequence ids the answer of a broken request announces; the SDK checks the number."""
    asked = bytes(memoryview(decode(body, bodies.SampleCount).num_samples)[:_COUNT_BYTES])
    count = int(asked) if asked.removeprefix(b"-").isdigit() else 1
    return max(1, min(count, limits.max_samples))
