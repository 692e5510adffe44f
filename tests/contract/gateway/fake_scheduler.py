"""A deterministic scheduler behind a real gRPC server: it records what the gateway submits.

Commands settle at once with made-up numbers, unless `held` is set; then `release` settles them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.catalog_pb2_grpc import add_CatalogServicer_to_server
from tinkermesh.v1.completions_pb2_grpc import add_CompletionsServicer_to_server
from tinkermesh.v1.console_pb2_grpc import add_ConsoleServicer_to_server
from tinkermesh.v1.jobs_pb2_grpc import add_JobsServicer_to_server
from tinkermesh.v1.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from tinkermesh.v1.tenants_pb2_grpc import add_TenantsServicer_to_server

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
from tests.contract.gateway.belongings import Belongings
from tests.contract.gateway.fake_catalog import FakeCatalog
from tests.contract.gateway.fake_completions import FakeCompletions
from tests.contract.gateway.fake_console import FakeConsole
from tests.contract.gateway.fake_jobs import FakeJobs
from tests.contract.gateway.fake_tenants import FakeTenants
from tests.contract.gateway.made_up_results import outcome
from tests.contract.gateway.submitted import BASE_MODEL, Submitted
from tests.contract.gateway.watch_streams import WatchStreams


class FakeScheduler(Belongings, SchedulerServicer):
    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self.failures: list[TinkermeshError] = []  # raised by the next calls, one each
        self.silences: Counter[str] = Counter()  # by RPC: how many calls are never answered
        self.rows: dict[str, Submitted] = {}  # by key
        self.requests: dict[str, Submitted] = {}  # by request id
        self.calls: list[str] = []
        self.deleted: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.joined: list[str] = []  # idempotency keys
        self.session_requests: list[pb.CreateSessionRequest] = []
        self.streams = WatchStreams(self.requests)
        self.catalog = FakeCatalog(self)
        self.completions = FakeCompletions(self)
        self.console = FakeConsole(self)
        self.jobs = FakeJobs()
        self.port = 0
        self.tenants = FakeTenants()
        self._server: GrpcServer | None = None

    def replica(self) -> FakeScheduler:
        """Another server over this one's state, as two schedulers over one Redis; streams are its own."""
        other = FakeScheduler()
        own = ("streams", "port", "_server")
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name not in own})
        other.streams = WatchStreams(other.requests)
        return other

    # ---- life ------------------------------------------------------------------------------

    async def start(self, address: str = "127.0.0.1:0") -> int:
        self._server = GrpcServer(["tinkermesh.v1.Scheduler"])
        add_SchedulerServicer_to_server(self, self._server.server)
        add_CatalogServicer_to_server(self.catalog, self._server.server)
        add_CompletionsServicer_to_server(self.completions, self._server.server)
        add_ConsoleServicer_to_server(self.console, self._server.server)
        add_JobsServicer_to_server(self.jobs, self._server.server)
        add_TenantsServicer_to_server(self.tenants, self._server.server)
        self.port = await self._server.start(address)
        return self.port

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
                self.streams.tell(one)

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
        self.owned(self.sessions, request.session_id, request.tenant_id, "session")
        return pb.HeartbeatReply()

    async def FinishSession(self, request: Any, context: Any) -> pb.FinishSessionReply:
        self._enter("FinishSession")
        self.owned(self.sessions, request.session_id, request.tenant_id, "session")
        return pb.FinishSessionReply()

    async def Submit(self, request: Any, context: Any) -> pb.SubmitReply:
        self._enter("Submit")
        return self._accept(request, request.payload, context)

    async def _maybe_silent(self, name: str) -> None:
        if self.silences[name] > 0:
            self.silences[name] -= 1
            await asyncio.Event().wait()

    async def SubmitStream(self, request_iterator: Any, context: Any) -> pb.SubmitReply:
        self._enter("SubmitStream")
        await self._maybe_silent("SubmitStream")
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
                self.owned(self.models, model_id, request.tenant_id, "model")
                return key_hash("train", model_id, request.model.seq_id), model_id, 0
            case "unload":
                self.owned(self.models, request.unload.model_id, request.tenant_id, "model")
                return key_hash("unload", request.unload.model_id), request.unload.model_id, 0
            case "create":
                session = request.create.session_id
                self.owned(self.sessions, session, request.tenant_id, "session")
                model_id = f"{session}:train:{request.create.model_seq_id}"
                return key_hash("train", model_id, 0), model_id, 0
            case "sample":
                sampler = request.sample.sampling_session_id
                self.owned(self.samplers, sampler, request.tenant_id, "sampling session")
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

    async def CreateSamplingSession(self, request: Any, context: Any) -> pb.CreateSamplingSessionReply:
        self._enter("CreateSamplingSession")
        self.owned(self.sessions, request.session_id, request.tenant_id, "session")
        sampler_id = self.add_sampler(
            request.tenant_id, request.session_id, request.sampling_session_seq_id, request.model_path
        )
        return pb.CreateSamplingSessionReply(sampling_session_id=sampler_id)

    async def GetSampler(self, request: Any, context: Any) -> pb.GetSamplerReply:
        self._enter("GetSampler")
        return self.owned(self.samplers, request.sampling_session_id, request.tenant_id, "sampling session")[1]

    async def JoinSamplingSession(self, request: Any, context: Any) -> pb.JoinSamplingSessionReply:
        self._enter("JoinSamplingSession")
        self.owned(self.samplers, request.sampling_session_id, request.tenant_id, "sampling session")
        self.joined.append(request.idempotency_key)
        return pb.JoinSamplingSessionReply(client_number=1_000_000_000 + len(self.joined))

    async def ListCompletions(self, request: Any, context: Any) -> pb.ListCompletionsReply:
        self._enter("ListCompletions")
        self.owned(self.samplers, request.sampling_session_id, request.tenant_id, "sampling session")
        return self.streams.settled.reply(request)

    async def GetModel(self, request: Any, context: Any) -> pb.ModelInfo:
        self._enter("GetModel")
        return self.owned(self.models, request.model_id, request.tenant_id, "model")[1]

    async def GetWeightsInfo(self, request: Any, context: Any) -> pb.WeightsInfo:
        self._enter("GetWeightsInfo")
        if request.path.endswith("/missing"):
            raise MissingResource(f"{request.path} does not exist")
        layout = types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=False)
        return pb.WeightsInfo(base_model=BASE_MODEL, layout=layout, path=request.path)

    async def GetTrainingRun(self, request: Any, context: Any) -> pb.TrainingRun:
        self._enter("GetTrainingRun")
        _, info = self.owned(self.models, request.training_run_id, request.tenant_id, "model")
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
        self.owned(self.models, request.training_run_id, request.tenant_id, "model")
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
        await self._maybe_silent("GetResult")
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
        async for event in self.streams.watch(request_iterator):
            yield event

    def away(self, times: int) -> None:
        """The next `times` calls find nobody."""
        self.failures.extend(Unavailable("replica is away") for _ in range(times))
