"""Submit: one command, accepted durably, to training or sampling by its key."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.errors import InvalidInput, KeyConflict, TooLarge
from services.common.ids import is_session_id, parse_model_id, parse_request_id
from services.scheduler.pools import Pools, same_base_model
from services.scheduler.ports import Admission, ArtifactReader
from services.scheduler.pressure import Pressure
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.session_directory import COPY, SessionDirectory
from services.scheduler.sessions import Sessions
from services.scheduler.store.requests import RequestReader

MAX_PAYLOAD_BYTES = 64 << 20
CREATES = ("create_model", "create_from_checkpoint")


class Intake:
    def __init__(
        self,
        training: Admission,
        samples: Admission,
        pools: Pools,
        artifacts: ArtifactReader,
        session_directory: SessionDirectory,
        sessions: Sessions,
        sampling_sessions: SamplingSessions,
        reader: RequestReader,
        pressure: Pressure,
    ) -> None:
        self._pressure = pressure
        self._training = training
        self._samples = samples
        self._pools = pools
        self._artifacts = artifacts
        self._directory = session_directory
        self._sessions = sessions
        self._sampling_sessions = sampling_sessions
        self._reader = reader

    async def submit(self, request: pb.SubmitRequest, payload: bytes) -> pb.SubmitReply:
        """Raises InvalidInput, KeyConflict, UnknownId, Forbidden, ModelClosed, Busy, Unavailable."""
        _check_envelope(request, payload)
        await self._pressure.admit(request)
        with logs.bind(tenant_id=request.tenant_id):
            match request.WhichOneof("key"):
                case "sample":
                    return await self._samples.submit(request, payload, telemetry.current_traceparent())
                case "create":
                    return await self._create(request, payload)
                case _:
                    return await self._train(request, payload)

    async def _train(self, request: pb.SubmitRequest, payload: bytes) -> pb.SubmitReply:
        reply = await self._training.submit(request, payload, telemetry.current_traceparent())
        save = request.command.save_for_sampler
        if request.WhichOneof("key") == "model" and save.HasField("sampling_session_seq_id"):
            await self._alias(request, reply.request_id)
        return reply

    async def _create(self, request: pb.SubmitRequest, payload: bytes) -> pb.SubmitReply:
        """Two idempotent steps, completed by any retry: the session names the pool, the pool takes the command."""
        key = request.create
        pool = await self._directory.pool_of_model(key.session_id, key.model_seq_id)
        if pool is None:
            await self._directory.check_owner(request.tenant_id, key.session_id)
            pool = await self._pool_of_create(request)
        pool = await self._directory.claim_model(request.tenant_id, key.session_id, key.model_seq_id, pool)
        if pool == COPY:
            raise KeyConflict(f"model_seq_id {key.model_seq_id} of this session names a copy; use the next one")
        reply = await self._training.submit(request, payload, telemetry.current_traceparent())
        await self._sessions.close_late_model(key.session_id, pool)
        return reply

    async def _pool_of_create(self, request: pb.SubmitRequest) -> str:
        command = request.command
        if command.WhichOneof("body") == "create_model":
            return (await self._pools.of_base_model(command.create_model.base_model)).pool
        body = command.create_from_checkpoint
        if command.rejected and not body.path:
            raise InvalidInput(command.rejected)
        return await self._pool_of_checkpoint(body, request.tenant_id)

    async def _pool_of_checkpoint(self, body: types.CreateFromCheckpointBody, tenant_id: str) -> str:
        info = await self._artifacts.weights_info(body.path, tenant_id, body.weights_access_digest)
        facts = await self._pools.of_base_model(info.base_model, "path")
        if body.base_model and not same_base_model(facts, body.base_model):
            raise InvalidInput(
                f"base_model: {body.base_model[:300]!r} is not what {body.path} was trained on: {info.base_model!r}"
            )
        return facts.pool

    async def _alias(self, request: pb.SubmitRequest, request_id: str) -> None:
        """A retried unnamed save brings a new sampling session key: it names the first one's session."""
        parsed = parse_request_id(request_id)
        stored = await self._reader.command(parsed)
        first = stored.save_for_sampler if stored else None
        mine = request.command.save_for_sampler.sampling_session_seq_id
        if first is None or not first.HasField("sampling_session_seq_id") or first.sampling_session_seq_id == mine:
            return
        session_id = parse_model_id(request.model.model_id).session_id
        await self._sampling_sessions.alias(
            request.tenant_id, session_id, mine, first.sampling_session_seq_id, parsed.pool
        )


def _check_envelope(request: pb.SubmitRequest, payload: bytes) -> None:
    key = request.WhichOneof("key")
    body = request.command.WhichOneof("body")
    if key is None or not request.tenant_id:
        raise InvalidInput("key: a command needs its tenant and one of model, create, sample or unload keys")
    if request.payload_bytes != len(payload):
        raise InvalidInput(f"payload: {len(payload)} bytes arrived, payload_bytes says {request.payload_bytes}")
    if key == "create" and not is_session_id(request.create.session_id):
        raise InvalidInput(f"session_id: {request.create.session_id[:64]!r} is not a session of this mesh")
    if body is not None and (key == "create") != (body in CREATES):
        raise InvalidInput(f"command: {body} does not go with a {key} key")


async def collect(frames: AsyncIterator[pb.SubmitFrame]) -> tuple[pb.SubmitRequest, bytes]:
    """The request and payload of a SubmitStream. Raises InvalidInput, TooLarge."""
    request: pb.SubmitRequest | None = None
    payload = bytearray()
    async for frame in frames:
        if frame.WhichOneof("frame") == "request":
            if request is not None:
                raise InvalidInput("frame: a second request arrived in one stream")
            request = frame.request
            check_size(request.payload_bytes)
        elif request is None:
            raise InvalidInput("frame: the first frame must be the request")
        else:
            payload += frame.payload
            check_size(len(payload))
    if request is None:
        raise InvalidInput("frame: the stream ended without a request")
    return request, bytes(payload)


def check_size(size: int) -> None:
    if size > MAX_PAYLOAD_BYTES:
        raise TooLarge(f"payload: {size} bytes are above the limit of {MAX_PAYLOAD_BYTES}; send smaller chunks")
