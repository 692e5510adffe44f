"""Typed calls to the scheduler. Raises errors of services.common.errors only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar, cast

import grpc
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.v1.scheduler_pb2_grpc import SchedulerStub

from services.common.errors import ContractViolation
from services.common.frames import FRAME_BYTES, frames
from services.gateway.upstream.retry import Retry

Request = TypeVar("Request")
Reply = TypeVar("Reply")


STREAMED_BYTES_PER_SECOND = 16 << 20
"""Slower than any scheduler takes a payload in: a second attempt beside the first is for one that hangs."""


class SchedulerClient:
    """One channel over all scheduler replicas."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry) -> None:
        self._stub: Any = SchedulerStub(channel)
        self._retry = retry

    async def submit(self, request: pb.SubmitRequest, payload: bytes = b"") -> pb.SubmitReply:
        """Hands over one command; payloads above one frame are streamed."""
        request.payload_bytes = len(payload)
        if len(payload) <= FRAME_BYTES:
            request.payload = payload
            return cast("pb.SubmitReply", await self._unary(self._stub.Submit, request))
        return await self._retry.call(
            lambda timeout: self._stub.SubmitStream(_submit_frames(request, payload), timeout=timeout),
            hedged=True,
            busy_seconds=len(payload) / STREAMED_BYTES_PER_SECOND,
        )

    async def create_session(self, request: pb.CreateSessionRequest) -> pb.CreateSessionReply:
        """Without a key of the client's a second attempt would make a second session."""
        hedged = request.idempotency_key != ""
        return cast("pb.CreateSessionReply", await self._unary(self._stub.CreateSession, request, hedged=hedged))

    async def heartbeat(self, tenant: str, session_id: str) -> None:
        await self._unary(self._stub.Heartbeat, pb.HeartbeatRequest(tenant_id=tenant, session_id=session_id))

    async def finish_session(self, request: pb.FinishSessionRequest) -> None:
        await self._unary(self._stub.FinishSession, request)

    async def create_sampling_session(self, request: pb.CreateSamplingSessionRequest) -> pb.CreateSamplingSessionReply:
        reply = await self._unary(self._stub.CreateSamplingSession, request)
        return cast("pb.CreateSamplingSessionReply", reply)

    async def get_sampler(self, tenant: str, sampling_session_id: str) -> pb.GetSamplerReply:
        request = pb.GetSamplerRequest(tenant_id=tenant, sampling_session_id=sampling_session_id)
        return cast("pb.GetSamplerReply", await self._unary(self._stub.GetSampler, request))

    async def get_model(self, tenant: str, model_id: str) -> pb.ModelInfo:
        request = pb.GetModelRequest(tenant_id=tenant, model_id=model_id)
        return cast("pb.ModelInfo", await self._unary(self._stub.GetModel, request))

    async def get_weights_info(self, tenant: str, path: str, access_digest: str) -> pb.WeightsInfo:
        request = pb.GetWeightsInfoRequest(tenant_id=tenant, path=path, weights_access_digest=access_digest)
        return cast("pb.WeightsInfo", await self._unary(self._stub.GetWeightsInfo, request))

    async def get_training_run(self, tenant: str, training_run_id: str) -> pb.TrainingRun:
        request = pb.GetTrainingRunRequest(tenant_id=tenant, training_run_id=training_run_id)
        return cast("pb.TrainingRun", await self._unary(self._stub.GetTrainingRun, request))

    async def delete_checkpoint(self, tenant: str, training_run_id: str, checkpoint_id: str) -> None:
        request = pb.DeleteCheckpointRequest(
            tenant_id=tenant, training_run_id=training_run_id, checkpoint_id=checkpoint_id
        )
        # Not hedged: a second attempt beside the first may find the checkpoint gone already.
        await self._unary(self._stub.DeleteCheckpoint, request, hedged=False)

    async def list_pools(self) -> list[pb.PoolSummary]:
        return list((await self._unary(self._stub.ListPools, pb.ListPoolsRequest())).pools)

    async def join_sampling_session(self, request: pb.JoinSamplingSessionRequest) -> int:
        return int((await self._unary(self._stub.JoinSamplingSession, request)).client_number)

    async def list_completions(self, request: pb.ListCompletionsRequest) -> pb.ListCompletionsReply:
        return cast("pb.ListCompletionsReply", await self._unary(self._stub.ListCompletions, request))

    async def cancel(self, tenant: str, request_id: str) -> None:
        await self._unary(self._stub.Cancel, pb.CancelRequest(tenant_id=tenant, request_id=request_id))

    async def get_result(self, tenant: str, request_id: str, total_seconds: float) -> types.Result:
        """Tried for `total_seconds` at most. Raises Gone or UnknownId, Forbidden, Pending, Unavailable."""
        request = pb.GetResultRequest(tenant_id=tenant, request_id=request_id)
        data = await self._retry.call(
            lambda timeout: _collect(self._stub.GetResult(request, timeout=timeout)), total_seconds, hedged=True
        )
        result = types.Result()
        result.ParseFromString(data)
        if result.WhichOneof("outcome") is None:
            raise ContractViolation(f"the scheduler answered request {request_id} with an empty result")
        return result

    def watch(self, requests: AsyncIterator[pb.WatchRequest]) -> AsyncIterator[pb.WatchEvent]:
        """One Watch stream; ends or raises AioRpcError when its replica goes away."""
        return cast("AsyncIterator[pb.WatchEvent]", self._stub.Watch(requests, wait_for_ready=True))

    async def _unary(self, method: Any, request: Any, *, hedged: bool = True) -> Any:
        return await self._retry.call(lambda timeout: method(request, timeout=timeout), hedged=hedged)


async def _collect(call: AsyncIterator[pb.ResultFrame]) -> bytes:
    return b"".join([frame.data async for frame in call])


async def _submit_frames(request: pb.SubmitRequest, payload: bytes) -> AsyncIterator[pb.SubmitFrame]:
    yield pb.SubmitFrame(request=request)
    for frame in frames(payload):
        yield pb.SubmitFrame(payload=frame)
