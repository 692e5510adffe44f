"""The Scheduler service: each method names the part that does the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import scheduler_pb2_grpc

from services.common.errors import Unavailable
from services.common.frames import frames
from services.common.grpc_boundary import Context
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.checkpoints import Checkpoints
from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.directory import Directory
from services.scheduler.front import Front
from services.scheduler.intake import Intake, collect
from services.scheduler.pool_facts import trainable
from services.scheduler.ports import ModelBook
from services.scheduler.results import Results
from services.scheduler.sampling.cancel import Cancellation
from services.scheduler.sampling.completions import Completions
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.sessions import Sessions
from services.scheduler.watch import WatchHub, WatchStream


class Scheduler(scheduler_pb2_grpc.SchedulerServicer):
    def __init__(
        self,
        *,
        intake: Intake,
        sessions: Sessions,
        sampling_sessions: SamplingSessions,
        cancellation: Cancellation,
        completions: Completions,
        models: ModelBook,
        artifacts: Artifacts,
        training_runs: TrainingRuns,
        checkpoints: Checkpoints,
        directory: Directory,
        results: Results,
        watches: WatchHub,
        front: Front,
    ) -> None:
        self._intake = intake
        self._sessions = sessions
        self._sampling_sessions = sampling_sessions
        self._cancellation = cancellation
        self._completions = completions
        self._models = models
        self._artifacts = artifacts
        self._training_runs = training_runs
        self._checkpoints = checkpoints
        self._directory = directory
        self._results = results
        self._watches = watches
        self._front = front

    # -- sessions ------------------------------------------------------------------------

    async def CreateSession(self, request: pb.CreateSessionRequest, context: Context) -> pb.CreateSessionReply:
        self._front.admit()
        return pb.CreateSessionReply(session_id=await self._sessions.create(request))

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.HeartbeatReply:
        self._front.seen()
        await self._sessions.beat(request.session_id, request.tenant_id)
        return pb.HeartbeatReply()

    async def FinishSession(self, request: pb.FinishSessionRequest, context: Context) -> pb.FinishSessionReply:
        self._front.seen()
        await self._sessions.finish(request)
        return pb.FinishSessionReply()

    # -- commands ------------------------------------------------------------------------

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        self._front.admit()
        payload = request.payload
        request.ClearField("payload")
        return await self._intake.submit(request, payload)

    async def SubmitStream(self, request_iterator: AsyncIterator[pb.SubmitFrame], context: Context) -> pb.SubmitReply:
        self._front.admit()
        request, payload = await collect(request_iterator)
        return await self._intake.submit(request, payload)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        self._front.seen()
        await self._cancellation.cancel(request.request_id, request.tenant_id)
        return pb.CancelReply()

    # -- sampling sessions, models, artifacts ----------------------------------------------

    async def CreateSamplingSession(
        self, request: pb.CreateSamplingSessionRequest, context: Context
    ) -> pb.CreateSamplingSessionReply:
        self._front.admit()
        return pb.CreateSamplingSessionReply(sampling_session_id=await self._sampling_sessions.create(request))

    async def GetSampler(self, request: pb.GetSamplerRequest, context: Context) -> pb.GetSamplerReply:
        self._front.seen()
        session, facts = await self._sampling_sessions.get(request.sampling_session_id, request.tenant_id)
        return pb.GetSamplerReply(
            sampler_id=session.sampling_session_id,
            base_model=session.base_model,
            model_path=session.model_path,
            facts=facts,
        )

    async def JoinSamplingSession(
        self, request: pb.JoinSamplingSessionRequest, context: Context
    ) -> pb.JoinSamplingSessionReply:
        self._front.seen()
        return pb.JoinSamplingSessionReply(client_number=await self._completions.join(request))

    async def ListCompletions(self, request: pb.ListCompletionsRequest, context: Context) -> pb.ListCompletionsReply:
        self._front.seen()
        return await self._completions.list(request)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.ModelInfo:
        self._front.seen()
        return await self._models.describe(request.model_id, request.tenant_id)

    async def GetWeightsInfo(self, request: pb.GetWeightsInfoRequest, context: Context) -> pb.WeightsInfo:
        self._front.seen()
        return await self._artifacts.weights_info(request.path, request.tenant_id, request.weights_access_digest)

    async def GetTrainingRun(self, request: pb.GetTrainingRunRequest, context: Context) -> pb.TrainingRun:
        self._front.seen()
        return await self._training_runs.get(request.training_run_id, request.tenant_id)

    async def DeleteCheckpoint(self, request: pb.DeleteCheckpointRequest, context: Context) -> pb.DeleteCheckpointReply:
        self._front.seen()
        await self._checkpoints.delete(request.training_run_id, request.checkpoint_id, request.tenant_id)
        return pb.DeleteCheckpointReply()

    async def ListPools(self, request: pb.ListPoolsRequest, context: Context) -> pb.ListPoolsReply:
        self._front.seen()
        reply = pb.ListPoolsReply()
        for facts in await self._directory.pools():
            sampleable = bool(await self._directory.live(facts.pool, "samplers"))
            reply.pools.add(facts=facts, trainable=trainable(facts), sampleable=sampleable)
        return reply

    # -- results -------------------------------------------------------------------------

    async def Watch(
        self, request_iterator: AsyncIterator[pb.WatchRequest], context: Context
    ) -> AsyncIterator[pb.WatchEvent]:
        stream = self._watches.open()
        reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (event := await stream.next()) is not None:
                yield event
        finally:
            reading.cancel()
            self._watches.close(stream)

    async def _read(self, requests: AsyncIterator[pb.WatchRequest], stream: WatchStream) -> None:
        try:
            async for request in requests:
                self._watches.handle(stream, request)
        finally:
            stream.end()

    async def GetResult(self, request: pb.GetResultRequest, context: Context) -> AsyncIterator[pb.ResultFrame]:
        self._front.seen()
        data = await self._results.whole(request.request_id, request.tenant_id)
        for frame in frames(data):
            yield pb.ResultFrame(data=frame)
        with suppress(Unavailable):  # it was delivered; then it stays for its whole retention
            await self._results.delivered(request.request_id)
