"""OpenAI's routes: models, completions and chat completions, for their unmodified clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import completions_pb2 as pb

from services.common import logs, telemetry
from services.common.errors import InvalidInput
from services.gateway import metrics
from services.gateway.endpoint import Call, Surface, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.openai import bodies, checks
from services.gateway.openai.answer import Answer
from services.gateway.openai.checks import Wish
from services.gateway.openai.errors import error_response, internal_error_response
from services.gateway.openai.forms import ChatForm, CompletionForm, Form
from services.gateway.openai.serving import ClientGone, Serving, check_size, while_connected
from services.gateway.places import Places
from services.gateway.settings import Limits
from services.gateway.sse import EventStream
from services.gateway.wire.json_body import check_parts, decode

SURFACE = Surface("/oai/api/v1", error_response, internal_error_response)
OWNER = "tinkermesh"
_GONE = 499

Prepare = Callable[[bytes, Limits], tuple[pb.GenerateRequest, Wish]]


def routes(gateway: Gateway) -> list[Route]:
    settings = gateway.settings
    places = Places("completions", settings.max_completions_per_tenant, settings.max_completions)
    metrics.completions_open(lambda: places.taken)

    def generating(form: Form, prepare: Prepare, route: str) -> Route:
        async def handler(call: Call) -> Response:
            with ExitStack() as ends:
                ends.enter_context(places.held_by(call.tenant))
                return await _Handling(call, form, route, ends).answer(prepare)

        return endpoint(gateway, route, handler, surface=SURFACE)

    return [
        generating(ChatForm(), _chat, "/chat/completions"),
        generating(CompletionForm(), _completion, "/completions"),
        endpoint(gateway, "/models", list_models, ("GET",), surface=SURFACE),
        endpoint(gateway, "/models/{model:path}", get_model, ("GET",), surface=SURFACE),
    ]


def _completion(body: bytes, limits: Limits) -> tuple[pb.GenerateRequest, Wish]:
    check_parts(body, limits.max_parts)
    return checks.completion(decode(body, bodies.Completion), limits)


def _chat(body: bytes, limits: Limits) -> tuple[pb.GenerateRequest, Wish]:
    check_parts(body, limits.max_parts)
    return checks.chat(decode(body, bodies.Chat), limits)


class _Handling:
    """One request; what `ends` holds is given back with its last byte."""

    def __init__(self, call: Call, form: Form, route: str, ends: ExitStack) -> None:
        self._call = call
        self._form = form
        self._route = route
        self._ends = ends

    async def answer(self, prepare: Prepare) -> Response:
        call, gateway = self._call, self._call.gateway
        call.decision.op = "generate"
        body = await call.small_body()
        request, wish = await gateway.offload.run(len(body), prepare, body, gateway.limits)
        request.tenant_id = call.tenant
        answer = Answer(self._form, wish)
        request.completion_id = call.decision.request_id = answer.id
        telemetry.annotate({"tinkermesh.completion_id": answer.id, "tinkermesh.streamed": wish.stream})
        with logs.bind(completion_id=answer.id):
            try:
                return await while_connected(call.request, self._served(request, wish, answer))
            except ClientGone:
                return Response(status_code=_GONE)

    async def _served(self, request: pb.GenerateRequest, wish: Wish, answer: Answer) -> Response:
        settings = self._call.gateway.settings
        generation = await self._call.gateway.completions.generate(request)
        serving = Serving(generation, answer, metrics.Completing(self._route, wish.stream))
        with ExitStack() as ends:
            ends.push(serving.end)
            check_size(generation.started, wish, settings.max_completion_values)
            answer.started(generation.started, request)
            if not wish.stream:
                return await serving.whole()
            await serving.began(settings.completion_heartbeat_seconds)
            self._ends.push(ends.pop_all())
            return EventStream(serving.events(settings.completion_heartbeat_seconds), self._ends.pop_all())


async def list_models(call: Call) -> Response:
    models = await call.gateway.completions.models(call.tenant)
    return json_response({"object": "list", "data": [_model(one) for one in models]})


async def get_model(call: Call) -> Response:
    name = call.path("model")
    if not 1 <= len(name) <= checks.MAX_NAME:
        raise InvalidInput(f"model: a name has 1 to {checks.MAX_NAME} characters")
    return json_response(_model((await call.gateway.completions.models(call.tenant, name))[0]))


def _model(model: pb.CompletionModel) -> dict[str, Any]:
    told = {"id": model.id, "object": "model", "created": model.created_unix_ms // 1000, "owned_by": OWNER}
    told["max_model_len"] = model.max_context
    return {**told, "parent": model.base_model} if model.base_model else told
