"""A deterministic scheduler behind a real gRPC server: it records what the gateway submits.

Commands settle at once with made-up numbers, unless `held` is set; then `release` settles them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server

from services.common.errors import (
    Forbidden,
    Gone,
    KeyConflict,
    MissingResource,
    Pending,
    TinkermeshError,
    Unavailable,
    UnknownId,
)
from services.common.frames import frames
from services.common.grpc_server import GrpcServer
from services.common.ids import key_hash

VOCAB = 512
CONTEXT = 256
BASE_MODEL = "tinkermesh/double"
INLINE_BYTES = 32 * 1024


def facts() -> types.PoolFacts:
    return types.PoolFacts(
        pool="double",
        base_model=BASE_MODEL,
        aliases=["/models/double/tiny", "double-alias"],
        vocab_size=VOCAB,
        max_context=CONTEXT,
        tokenizer_path="/models/double/tiny",
        slots=8,
        max_rank=32,
        alpha=32.0,
        train_attn=True,
        train_mlp=True,
        train_unembed=True,
        losses=["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"],
        arch="double",
    )


@dataclass
class Submitted:
    """One accepted command."""

    request: pb.SubmitRequest
    payload: bytes
    reply: pb.SubmitReply
    result: types.Result | None = None
    traceparent: str = ""

    @property
    def command(self) -> types.Command:
        return self.request.command


@dataclass(eq=False)
class _Watcher:
    events: asyncio.Queue[pb.WatchEvent] = field(default_factory=asyncio.Queue)
    open: set[tuple[str, str]] = field(default_factory=set)


class FakeScheduler(SchedulerServicer):
    def __init__(self) -> None:
        self.held = False
        self.failures: list[TinkermeshError] = []  # raised by the next calls, one each
        self.rows: dict[str, Submitted] = {}  # by key
        self.requests: dict[str, Submitted] = {}  # by request id
        self.calls: list[str] = []
        self.sessions: dict[str, str] = {}
        self.models: dict[str, tuple[str, pb.ModelInfo]] = {}
        self.samplers: dict[str, tuple[str, pb.GetSamplerReply]] = {}
        self.deleted: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.session_requests: list[pb.CreateSessionRequest] = []
        self.watchers: set[_Watcher] = set()
        self.pools = [facts()]
        self.silent = False  # a stream that says nothing, as after a lost wake-up
        self.queue_state = ("active", "")
        self._server: GrpcServer | None = None

    # ---- life ------------------------------------------------------------------------------

    async def start(self, address: str = "127.0.0.1:0") -> int:
        self._server = GrpcServer(["tinkermesh.v1.Scheduler"])
        add_SchedulerServicer_to_server(self, self._server.server)
        return await self._server.start(address)

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    # ---- what tests look at ------------------------------------------------------------------

    @property
    def submitted(self) -> list[Submitted]:
        return list(self.requests.values())

    @property
    def last(self) -> Submitted:
        return self.submitted[-1]

    def release(self, request_id: str | None = None, result: types.Result | None = None) -> None:
        """Settle one request, or all that are pending."""
        for one in self.submitted:
            if one.result is None and request_id in (None, one.reply.request_id):
                one.result = result or outcome(one)
                self._tell(one)

    def add_session(self, tenant: str) -> str:
        session_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"session {len(self.sessions)}"))
        self.sessions[session_id] = tenant
        return session_id

    def add_model(self, tenant: str, session_id: str, number: int = 0, rank: int = 8) -> str:
        model_id = f"{session_id}:train:{number}"
        layout = types.AdapterLayout(rank=rank, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
        info = pb.ModelInfo(model_id=model_id, state="open", layout=layout, facts=self.pools[0])
        self.models[model_id] = (tenant, info)
        return model_id

    def add_sampler(self, tenant: str, session_id: str, number: int = 0, path: str = "") -> str:
        sampler_id = f"{session_id}:sample:{number}:double"
        reply = pb.GetSamplerReply(sampler_id=sampler_id, base_model=BASE_MODEL, model_path=path, facts=self.pools[0])
        self.samplers[sampler_id] = (tenant, reply)
        return sampler_id

    # ---- RPCs --------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if self.failures:
            raise self.failures.pop(0)

    async def CreateSession(self, request: Any, context: Any) -> pb.CreateSessionReply:
        self._enter("CreateSession")
        self.session_requests.append(request)
        return pb.CreateSessionReply(session_id=self.add_session(request.tenant_id))

    async def Heartbeat(self, request: Any, context: Any) -> pb.HeartbeatReply:
        self._enter("Heartbeat")
        self._owned(self.sessions, request.session_id, request.tenant_id, "session")
        return pb.HeartbeatReply()

    async def FinishSession(self, request: Any, context: Any) -> pb.FinishSessionReply:
        self._enter("FinishSession")
        self._owned(self.sessions, request.session_id, request.tenant_id, "session")
        return pb.FinishSessionReply()

    async def Submit(self, request: Any, context: Any) -> pb.SubmitReply:
        self._enter("Submit")
        return self._accept(request, request.payload, context)

    async def SubmitStream(self, request_iterator: Any, context: Any) -> pb.SubmitReply:
        self._enter("SubmitStream")
        head, parts = None, []
        async for frame in request_iterator:
            if frame.HasField("request"):
                head = frame.request
            else:
                parts.append(frame.payload)
        assert head is not None
        return self._accept(head, b"".join(parts), context)

    def _accept(self, request: pb.SubmitRequest, payload: bytes, context: Any) -> pb.SubmitReply:
        assert request.payload_bytes == len(payload)
        assert len(request.fingerprint) == 16
        key, model_id, count = self._key(request)
        known = self.rows.get(key)
        if known is not None:
            if known.request.fingerprint != request.fingerprint:
                raise KeyConflict("seq already used with a different request")
            return known.reply
        request_id = f"double.{key}.0"
        ids = [f"{key[:12]}-{i}" for i in range(count)]
        reply = pb.SubmitReply(request_id=request_id, model_id=model_id, sample_sequence_ids=ids)
        metadata = dict(context.invocation_metadata() or ())
        one = Submitted(request, payload, reply, traceparent=metadata.get("traceparent", ""))
        self.rows[key] = self.requests[request_id] = one
        if not self.held:
            one.result = outcome(one)
        self._apply(one)
        return reply

    def _key(self, request: pb.SubmitRequest) -> tuple[str, str, int]:
        match request.WhichOneof("key"):
            case "model":
                model_id = request.model.model_id
                self._owned(self.models, model_id, request.tenant_id, "model")
                return key_hash("train", model_id, request.model.seq_id), model_id, 0
            case "unload":
                self._owned(self.models, request.unload.model_id, request.tenant_id, "model")
                return key_hash("unload", request.unload.model_id), request.unload.model_id, 0
            case "create":
                session = request.create.session_id
                self._owned(self.sessions, session, request.tenant_id, "session")
                model_id = f"{session}:train:{request.create.model_seq_id}"
                return key_hash("train", model_id, 0), model_id, 0
            case "sample":
                sampler = request.sample.sampling_session_id
                self._owned(self.samplers, sampler, request.tenant_id, "sampling session")
                return key_hash("sample", sampler, request.sample.seq_id), "", request.command.sample.num_samples
        raise AssertionError("no key")

    def _apply(self, one: Submitted) -> None:
        request, command = one.request, one.command
        if command.rejected:
            return
        if request.WhichOneof("key") == "create":
            rank = command.create_model.layout.rank or 8
            self.add_model(request.tenant_id, request.create.session_id, request.create.model_seq_id, rank)
        save = command.save_for_sampler
        if save.HasField("sampling_session_seq_id"):
            session = request.model.model_id.partition(":")[0]
            self.add_sampler(request.tenant_id, session, save.sampling_session_seq_id, "tinker://unnamed")

    def _owned(self, table: dict[str, Any], key: str, tenant: str, what: str) -> Any:
        if key not in table:
            raise UnknownId(f"{what} {key} does not exist")
        owner = table[key] if isinstance(table[key], str) else table[key][0]
        if owner != tenant:
            raise Forbidden(f"{what} {key} belongs to another account")
        return table[key]

    async def CreateSamplingSession(self, request: Any, context: Any) -> pb.CreateSamplingSessionReply:
        self._enter("CreateSamplingSession")
        self._owned(self.sessions, request.session_id, request.tenant_id, "session")
        sampler_id = self.add_sampler(
            request.tenant_id, request.session_id, request.sampling_session_seq_id, request.model_path
        )
        return pb.CreateSamplingSessionReply(sampling_session_id=sampler_id)

    async def GetSampler(self, request: Any, context: Any) -> pb.GetSamplerReply:
        self._enter("GetSampler")
        return self._owned(self.samplers, request.sampling_session_id, request.tenant_id, "sampling session")[1]

    async def GetModel(self, request: Any, context: Any) -> pb.ModelInfo:
        self._enter("GetModel")
        return self._owned(self.models, request.model_id, request.tenant_id, "model")[1]

    async def GetWeightsInfo(self, request: Any, context: Any) -> pb.WeightsInfo:
        self._enter("GetWeightsInfo")
        if request.path.endswith("/missing"):
            raise MissingResource(f"{request.path} does not exist")
        layout = types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=False)
        return pb.WeightsInfo(base_model=BASE_MODEL, layout=layout, path=request.path)

    async def GetTrainingRun(self, request: Any, context: Any) -> pb.TrainingRun:
        self._enter("GetTrainingRun")
        _, info = self._owned(self.models, request.training_run_id, request.tenant_id, "model")
        checkpoint = pb.CheckpointInfo(
            checkpoint_id="weights/ck1",
            path=f"tinker://{request.training_run_id}/weights/ck1",
            created_unix_ms=1_700_000_000_000,
            size_bytes=1234,
        )
        return pb.TrainingRun(
            training_run_id=request.training_run_id,
            base_model=BASE_MODEL,
            tenant_id=request.tenant_id,
            layout=info.layout,
            last_request_unix_ms=1_700_000_000_500,
            user_metadata_json='{"renderer_name":"role_colon"}',
            last_checkpoint=checkpoint,
        )

    async def DeleteCheckpoint(self, request: Any, context: Any) -> pb.DeleteCheckpointReply:
        self._enter("DeleteCheckpoint")
        self._owned(self.models, request.training_run_id, request.tenant_id, "model")
        self.deleted.append((request.training_run_id, request.checkpoint_id))
        return pb.DeleteCheckpointReply()

    async def ListPools(self, request: Any, context: Any) -> pb.ListPoolsReply:
        self._enter("ListPools")
        pools = [pb.PoolSummary(facts=pool, trainable=True, sampleable=True) for pool in self.pools]
        return pb.ListPoolsReply(pools=pools)

    async def Cancel(self, request: Any, context: Any) -> pb.CancelReply:
        self._enter("Cancel")
        if request.request_id not in self.requests:
            raise UnknownId("no such request")
        self.cancelled.append(request.request_id)
        return pb.CancelReply()

    async def GetResult(self, request: Any, context: Any) -> AsyncIterator[pb.ResultFrame]:
        self._enter("GetResult")
        one = self.requests.get(request.request_id)
        if one is None:
            raise Gone("unknown or expired")
        if one.request.tenant_id != request.tenant_id:
            raise Forbidden("another account's")
        if one.result is None:
            raise Pending("not yet")
        for frame in frames(one.result.SerializeToString()):
            yield pb.ResultFrame(data=frame)

    async def Watch(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.WatchEvent]:
        self.calls.append("Watch")
        watcher = _Watcher()
        self.watchers.add(watcher)
        reading = asyncio.create_task(self._read(watcher, request_iterator))
        try:
            while True:
                yield await watcher.events.get()
        finally:
            reading.cancel()
            self.watchers.discard(watcher)

    async def _read(self, watcher: _Watcher, requests: Any) -> None:
        async for request in requests:
            if self.silent:
                continue
            for item in request.add:
                watcher.open.add((item.tenant_id, item.request_id))
                self._answer(watcher, item.tenant_id, item.request_id)
            for request_id in request.remove:
                watcher.open = {key for key in watcher.open if key[1] != request_id}
            for item in request.explain:
                state, reason = self.queue_state
                await watcher.events.put(
                    pb.WatchEvent(
                        request_id=item.request_id,
                        tenant_id=item.tenant_id,
                        state=pb.WATCH_STATE_PENDING,
                        queue_state=state,
                        queue_state_reason=reason,
                    )
                )

    def _tell(self, one: Submitted) -> None:
        for watcher in self.watchers:
            for tenant, request_id in list(watcher.open):
                if request_id == one.reply.request_id:
                    self._answer(watcher, tenant, request_id)

    def _answer(self, watcher: _Watcher, tenant: str, request_id: str) -> None:
        event = pb.WatchEvent(request_id=request_id, tenant_id=tenant)
        one = self.requests.get(request_id)
        if one is None:
            event.state = pb.WATCH_STATE_UNKNOWN
        elif one.request.tenant_id != tenant:
            event.state = pb.WATCH_STATE_FOREIGN
        elif one.result is None:
            return
        else:
            event.state = pb.WATCH_STATE_SETTLED
            event.result_bytes = one.result.ByteSize()
            if event.result_bytes <= INLINE_BYTES:
                event.result.CopyFrom(one.result)
        watcher.open.discard((tenant, request_id))
        watcher.events.put_nowait(event)

    def away(self, times: int) -> None:
        """The next `times` calls find nobody."""
        self.failures.extend(Unavailable("replica is away") for _ in range(times))


# ---- made-up outcomes --------------------------------------------------------------------------


def outcome(one: Submitted) -> types.Result:
    command = one.command
    if command.rejected:
        return types.Result(failure=types.Failure(category=types.FAILURE_CATEGORY_USER, message=command.rejected))
    match command.WhichOneof("body"):
        case "create_model" | "unload_model":
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id))
        case "create_from_checkpoint":
            path = command.create_from_checkpoint.path
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id, path=path))
        case "load_weights":
            path = command.load_weights.path
            return types.Result(model=types.ModelResult(model_id=one.reply.model_id, path=path))
        case "batch":
            return types.Result(batch=_batch(command.batch))
        case "optim_step":
            return types.Result(optim_step=types.OptimResult(metrics={"grad_norm": 1.5, "step": 1.0}))
        case "save_weights":
            name = command.save_weights.name or f"checkpoint-{one.request.model.seq_id:06d}"
            return types.Result(save=types.SaveResult(path=f"tinker://{one.reply.model_id}/weights/{name}"))
        case "save_for_sampler":
            return types.Result(save=_sampler_save(one))
        case "sample":
            return types.Result(sample=_sample(command.sample))
    raise AssertionError(f"no outcome for {command}")


def _batch(body: types.BatchBody) -> types.BatchResult:
    lengths, widths = list(body.table.lengths), list(body.table.widths)
    total = sum(n * k for n, k in zip(lengths, widths, strict=True))
    losses = [float(n) for n in lengths]
    return types.BatchResult(
        loss_sum=sum(losses),
        datum_losses=losses,
        lengths=lengths,
        widths=widths,
        logprobs=(-np.arange(total, dtype="<f4") / 8).tobytes(),
        metrics={"tokens:sum": float(sum(lengths))},
    )


def _sampler_save(one: Submitted) -> types.SaveResult:
    body, model_id = one.command.save_for_sampler, one.reply.model_id
    if body.HasField("sampling_session_seq_id"):
        session = model_id.partition(":")[0]
        return types.SaveResult(
            path=f"tinker://{model_id}/sampler_weights/1",
            sampling_session_id=f"{session}:sample:{body.sampling_session_seq_id}:double",
        )
    return types.SaveResult(path=f"tinker://{model_id}/sampler_weights/{body.name}")


def _sample(body: types.SampleBody) -> types.SampleResult:
    count = min(3, body.max_tokens)
    prompt = len(body.prompt_tokens) // 4
    sequences = []
    for index in range(body.num_samples):
        tokens = (np.arange(count, dtype="<i4") + 10 * index + 5).tobytes()
        logprobs = (-np.ones(count, dtype="<f4") / 4).tobytes()
        sequences.append(types.SampledSequence(tokens=tokens, logprobs=logprobs, stopped=index % 2 == 0))
    result = types.SampleResult(sequences=sequences, prompt_cache_hit_tokens=1)
    if body.prompt_logprobs:
        values = -np.arange(prompt, dtype="<f4")
        values[0] = np.nan
        result.prompt_logprobs = values.tobytes()
    if k := body.topk_prompt_logprobs:
        ids, scores = np.zeros((prompt, k), "<i4"), np.full((prompt, k), -99999.0, "<f4")
        ids[1:, 0], scores[1:, 0] = 7, -0.5
        result.topk_prompt_logprobs.CopyFrom(
            types.TopkTable(token_ids=ids.tobytes(), logprobs=scores.tobytes(), k=k, length=prompt)
        )
    return result
