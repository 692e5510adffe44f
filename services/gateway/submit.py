"""From a checked command to its request_id."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.errors import InvalidInput
from services.gateway.endpoint import Call
from services.gateway.fingerprint import fingerprint

log = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 2000


class Prepared(NamedTuple):
    """A command ready to be submitted; payload is empty unless it is a batch."""

    command: types.Command
    payload: bytes
    fingerprint: bytes


def prepare(command: types.Command, payload: bytes = b"") -> Prepared:
    return Prepared(command, payload, fingerprint(command, payload))


def rejected(command: types.Command, error: InvalidInput) -> Prepared:
    """`command` (its kind matters, its content does not) as one that fails in its turn."""
    command.rejected = error.message[:_MAX_REASON_CHARACTERS] or "the request is invalid"
    return prepare(command)


async def submit_training(call: Call, model_id: str, seq_id: int, prepared: Prepared) -> pb.SubmitReply:
    request = _request(call, prepared)
    request.model.model_id = model_id
    request.model.seq_id = seq_id
    return await _submit(call, request, prepared.payload)


async def submit_create(call: Call, session_id: str, model_seq_id: int, prepared: Prepared) -> pb.SubmitReply:
    request = _request(call, prepared)
    request.create.session_id = session_id
    request.create.model_seq_id = model_seq_id
    return await _submit(call, request, prepared.payload)


async def submit_sample(call: Call, sampling_session_id: str, seq_id: int, prepared: Prepared) -> pb.SubmitReply:
    request = _request(call, prepared)
    request.sample.sampling_session_id = sampling_session_id
    request.sample.seq_id = seq_id
    return await _submit(call, request, prepared.payload)


async def submit_unload(call: Call, model_id: str) -> pb.SubmitReply:
    prepared = prepare(types.Command(unload_model=types.UnloadModelBody()))
    request = _request(call, prepared)
    request.unload.model_id = model_id
    return await _submit(call, request, prepared.payload)


def _request(call: Call, prepared: Prepared) -> pb.SubmitRequest:
    return pb.SubmitRequest(tenant_id=call.tenant, fingerprint=prepared.fingerprint, command=prepared.command)


async def _submit(call: Call, request: pb.SubmitRequest, payload: bytes) -> pb.SubmitReply:
    decision = call.decision
    decision.op, decision.rejected = str(request.command.WhichOneof("body")), bool(request.command.rejected)
    reply = await call.gateway.scheduler.submit(request, payload)
    decision.request_id, decision.model_id = reply.request_id, reply.model_id
    telemetry.annotate({"tinkermesh.request_id": reply.request_id, "tinkermesh.model_id": reply.model_id})
    with logs.bind(request_id=reply.request_id, model_id=reply.model_id):
        log.info("accepted %s", request.command.WhichOneof("body"))
    return reply
