"""forward_backward: protobuf, protobuf+zstd or JSON, all to one canonical command."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import InvalidInput
from services.common.ids import parse_model_id
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import is_protobuf, json_response
from services.gateway.settings import Limits
from services.gateway.submit import Prepared, prepare, rejected, submit_training
from services.gateway.validation.batch import canonicalise
from services.gateway.wire import batch_json, batch_protobuf, bodies
from services.gateway.wire.batch import RawBatch
from services.gateway.wire.json_body import decode
from services.gateway.wire.zstd import ZstdCap, decompress


class Source(NamedTuple):
    """A body whose envelope could be read; its content waits for the pool's facts.

    `problem`: why the content is refused without a look at it.
    """

    envelope: bodies.ModelEnvelope
    content: wire.ForwardBackwardRequest | bytes
    forward_only: bool
    problem: str = ""

    def decode(self, limits: Limits) -> RawBatch:
        if self.problem:
            raise InvalidInput(self.problem)
        if isinstance(self.content, bytes):
            batch = batch_json.decode(self.content, limits)
            return RawBatch(batch.backward and not self.forward_only, batch.loss, batch.datums)
        return batch_protobuf.decode(self.content, limits)


class Decoded(NamedTuple):
    prepared: Prepared
    dropped: dict[str, int]


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/forward_backward", forward_backward),
        endpoint(gateway, "/forward", forward),
    ]


async def forward_backward(call: Call) -> Response:
    return await _batch(call, forward_only=False)


async def forward(call: Call) -> Response:
    """What older clients call; newer ones send forward_only."""
    return await _batch(call, forward_only=True)


async def _batch(call: Call, *, forward_only: bool) -> Response:
    gateway = call.gateway
    body = await _plain_body(call)
    protobuf = is_protobuf(call.request)
    source = await gateway.offload.run(len(body), _read_envelope, body, protobuf, forward_only, gateway.limits)
    envelope = source.envelope
    parse_model_id(envelope.model_id)
    facts = await gateway.facts.of_model(call.tenant, envelope.model_id)
    decoded = await gateway.offload.run(len(body), decode_batch, source, facts, gateway.limits)
    gateway.dropped.note(envelope.model_id, decoded.prepared.command.batch.loss.loss_fn, decoded.dropped)
    reply = await submit_training(call, envelope.model_id, envelope.seq_id, decoded.prepared)
    return json_response({"request_id": reply.request_id, "model_id": reply.model_id})


async def _plain_body(call: Call) -> bytes:
    body = await call.body()
    encoding = call.header("content-encoding").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "zstd":
        raise InvalidInput(f"content-encoding {encoding[:40]!r} is not supported; send zstd or none")
    settings = call.gateway.settings
    cap = ZstdCap(settings.max_body_bytes, settings.zstd_max_ratio, settings.zstd_free_bytes)
    # The compressed size says nothing about the work: a bomb is small, so always off the loop.
    return await call.gateway.offload.run(cap.allowed(len(body)), decompress, body, cap)


def _read_envelope(body: bytes, protobuf: bool, forward_only: bool, limits: Limits) -> Source:
    if not protobuf:
        return Source(decode(body, bodies.ModelEnvelope), body, forward_only)
    request, problem = batch_protobuf.parse(body, limits)
    if forward_only:
        request.forward_only = True
    if request.seq_id < 1:  # an int32 here
        raise InvalidInput(f"seq_id must be an integer >= 1, not {request.seq_id}")
    envelope = bodies.ModelEnvelope(model_id=request.model_id, seq_id=request.seq_id)
    return Source(envelope, request, forward_only, problem)


def decode_batch(source: Source, facts: types.PoolFacts, limits: Limits) -> Decoded:
    """The command and its payload, or its rejection."""
    try:
        batch = source.decode(limits)
        canonical = canonicalise(batch, facts, limits)
    except InvalidInput as error:
        return Decoded(rejected(types.Command(batch=types.BatchBody(backward=not source.forward_only)), error), {})
    return Decoded(prepare(types.Command(batch=canonical.body), canonical.payload), canonical.dropped)
