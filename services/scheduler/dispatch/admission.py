"""Admission of training commands: ports.Admission for create, model and unload keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, UnknownId, UserError
from services.common.ids import ModelId, key_hash, parse_model_id
from services.scheduler.core.packing import datum_cost
from services.scheduler.core.view import Op
from services.scheduler.dispatch.commands import check_payload, op_of, pack_key, rejection
from services.scheduler.dispatch.placement import placeable
from services.scheduler.dispatch.recorded import reads_records, with_records
from services.scheduler.ports import ArtifactReader, ModelDirectory, TrainerDirectory
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.payloads import PayloadStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.training import Admitted, NewModel, Submission, TrainingStore
from services.scheduler.tenancy.limits import encode_limits, unlimited
from services.scheduler.tenancy.records import Quotas

MAX_SEQ_ID = 2**63 - 1
REMEMBERED_BYTES = 8 << 10
"""Payloads up to this size need not be read back; a cache full of them takes 32 MiB."""


class TrainingAdmission:
    def __init__(
        self,
        store: TrainingStore,
        payloads: PayloadStore,
        models: ModelDirectory,
        trainers: TrainerDirectory,
        artifacts: ArtifactReader,
        commands: CommandCache,
        sequences: SequenceStore,
        quotas: Callable[[str], Quotas] = unlimited,
    ) -> None:
        self._store = store
        self._payloads = payloads
        self._models = models
        self._trainers = trainers
        self._artifacts = artifacts
        self._commands = commands
        self._sequences = sequences
        self._quotas = quotas

    async def submit(self, request: pb.SubmitRequest, payload: bytes, traceparent: str) -> pb.SubmitReply:
        """See ports.Admission. The pool of a create must have been claimed before."""
        model, seq = _target(request)
        pool = await self._models.pool_of_model(model.session_id, model.model_seq_id)
        if pool is None:
            raise UnknownId(f"model_id {model} is not known; create the model first")
        if reads_records(request.command):
            payload = await self._with_records(pool, request, payload)
        submission = _submission(request, model, seq, len(payload), traceparent)
        cost = 0 if submission.rejected else submission.tokens
        limits = encode_limits(self._quotas(request.tenant_id), cost, answers=request.command.HasField("batch"))
        submission = replace(submission, limits=limits)
        if not submission.rejected:
            submission = replace(submission, payload=await self._payloads.prepare(pool, submission.key, payload))
        admitted = await self._admitted(pool, request, submission)
        if admitted.admitted_ms:
            self._commands.remember(pool, _stored(submission, admitted, payload))
        return pb.SubmitReply(request_id=admitted.request_id, model_id=str(model))

    async def _admitted(self, pool: str, request: pb.SubmitRequest, submission: Submission) -> Admitted:
        """Once the command holds its key; of any other outcome no payload stays behind."""
        try:
            admitted = await self._admit(pool, request, submission)
        except UserError:  # whatever holds the key, if anything does, is another command: this payload is nobody's
            await self._payloads.discard(submission.payload)
            raise
        if not admitted.admitted_ms:
            await self._payloads.discard_repeated(pool, submission.key, submission.payload)
        return admitted

    async def _with_records(self, pool: str, request: pb.SubmitRequest, payload: bytes) -> bytes:
        """The payload with recorded vectors; a command whose sequences are not usable fails in its turn."""
        try:
            command, payload = await with_records(request.command, payload, pool, request.tenant_id, self._sequences)
        except UserError as error:
            request.command.rejected = error.message
            return b""
        request.command.CopyFrom(command)
        return payload

    async def _admit(self, pool: str, request: pb.SubmitRequest, submission: Submission) -> Admitted:
        kind = request.WhichOneof("key")
        if kind == "create":
            return await self._store.create(pool, submission, await self._new_model(pool, request))
        if kind == "unload":
            return await self._store.unload(pool, submission)
        return await self._store.submit(pool, submission)

    async def _new_model(self, pool: str, request: pb.SubmitRequest) -> NewModel:
        facts, cells = await self._trainers.facts(pool), placeable(await self._trainers.cells(pool))
        command = request.command
        if command.WhichOneof("body") == "create_from_checkpoint":
            body = command.create_from_checkpoint
            try:
                info = await self._artifacts.weights_info(body.path, request.tenant_id, body.weights_access_digest)
            except UserError:
                return NewModel(facts.base_model, b"", body.user_metadata_json, cells)  # told when its turn comes
            return NewModel(facts.base_model, info.layout.SerializeToString(), body.user_metadata_json, cells)
        layout = command.create_model.layout
        if not layout.alpha:
            layout.alpha = facts.alpha
        return NewModel(facts.base_model, layout.SerializeToString(), command.create_model.user_metadata_json, cells)


def _target(request: pb.SubmitRequest) -> tuple[ModelId, str]:
    """The model and the sequence id of a key. Raises InvalidInput, UnknownId."""
    kind = request.WhichOneof("key")
    if kind == "create":
        return ModelId(request.create.session_id, request.create.model_seq_id), "0"
    if kind == "unload":
        return parse_model_id(request.unload.model_id), ""
    if kind != "model":
        raise InvalidInput("key: a training command has a model, create or unload key")
    if not 1 <= request.model.seq_id <= MAX_SEQ_ID:
        raise InvalidInput(f"seq_id: {request.model.seq_id} is not a positive int64")
    return parse_model_id(request.model.model_id), str(request.model.seq_id)


def _submission(
    request: pb.SubmitRequest, model: ModelId, seq: str, payload_bytes: int, traceparent: str
) -> Submission:
    command = request.command
    op = _checked_op(request)
    rejected = rejection(op, command)
    table = command.batch.table
    if op.is_batch and not rejected:
        check_payload(table, payload_bytes)
    return Submission(
        key=key_hash("unload", str(model)) if op is Op.UNLOAD_MODEL else key_hash("train", str(model), seq),
        fingerprint=request.fingerprint.hex(),
        tenant=request.tenant_id,
        session=model.session_id,
        model_id=str(model),
        seq=seq,
        op=op.value,
        command=command.SerializeToString(),
        pack_key=pack_key(op, command.batch) if op.is_batch else "",
        datums=len(table.lengths) if op.is_batch else 1,
        tokens=sum(map(datum_cost, table.lengths, table.widths)),
        payload_bytes=0 if rejected else payload_bytes,
        traceparent=traceparent,
        rejected=rejected,
    )


def _checked_op(request: pb.SubmitRequest) -> Op:
    """The op, which must fit its key. Raises InvalidInput."""
    kind, op = request.WhichOneof("key"), op_of(request.command)
    if kind == "create":
        op = op if op.is_create else Op.CREATE if request.command.rejected else op
    elif kind == "unload" and request.command.WhichOneof("body") is None:
        op = Op.UNLOAD_MODEL
    fits = {"create": op.is_create, "unload": op is Op.UNLOAD_MODEL}
    if not fits.get(str(kind), not op.is_create and op not in (Op.UNLOAD_MODEL, Op.SAMPLE)):
        raise InvalidInput(f"command: {op.value} does not go with a {kind} key")
    return op


def _stored(submission: Submission, admitted: Admitted, payload: bytes) -> StoredCommand:
    """What the leader would read from the row, when it is this replica.

    The command is parsed anew: a part of a request keeps all of it in memory, payload included.
    """
    return StoredCommand(
        key=submission.key,
        request_id=admitted.request_id,
        tenant=submission.tenant,
        model_id=submission.model_id,
        command=types.Command.FromString(submission.command),
        upload=submission.payload.upload,
        traceparent=submission.traceparent,
        admitted_ms=admitted.admitted_ms,
        seq=int(submission.seq or 0),
        payload=payload if len(payload) <= REMEMBERED_BYTES else b"",
    )
