"""The trainer as the dispatcher calls it: units out, outcomes in, every call bounded."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, NamedTuple, cast

import grpc
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1.trainer_pb2_grpc import TrainerStub

from services.common.errors import ContractViolation, from_rpc_error
from services.common.frames import frames
from services.common.grpc_channel import open_channel

QUICK_SECONDS = 10.0


class Outcome(NamedTuple):
    """`problem`: why nothing of it can be trusted; "" = it is what the trainer said."""

    header: pb.UnitOutcome
    payload: bytes
    problem: str = ""


class TrainerClient:
    """One trainer process. Errors arrive as the types of services/common/errors.py."""

    def __init__(self, address: str, *, unit_seconds: float) -> None:
        self._channel = open_channel(address)
        self._stub: Any = TrainerStub(self._channel)  # its async form is not in the generated types
        self._unit_seconds = unit_seconds

    async def describe(self) -> pb.TrainerDescription:
        call = self._stub.Describe(pb.DescribeTrainerRequest(), timeout=QUICK_SECONDS)
        return cast("pb.TrainerDescription", await _typed(call))

    async def reach(self) -> None:
        """Costs a call only after the connection was lost. Raises Unavailable while the trainer is away."""
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            await self.describe()

    async def takeover(self, term: int, incarnation: str, token: int) -> pb.TakeoverReply:
        request = pb.TakeoverRequest(term=term, incarnation=incarnation, token=token)
        return cast("pb.TakeoverReply", await _typed(self._stub.Takeover(request, timeout=QUICK_SECONDS)))

    async def execute(self, unit: pb.Unit, payload: bytes) -> Outcome:
        """Raises StaleFence, UserError (nothing ran), another ServerError (it may have taken effect: attach)."""
        return await _collect(self._stub.Execute(_unit_frames(unit, payload), timeout=self._unit_seconds))

    async def attach(self, unit: pb.UnitRef) -> Outcome:
        """Raises UnknownId when this incarnation never saw the unit; else as `execute`."""
        return await _collect(self._stub.Attach(unit, timeout=self._unit_seconds))

    async def acknowledge(self, term: int, incarnation: str, unit_ids: list[str]) -> None:
        request = pb.AcknowledgeRequest(term=term, incarnation=incarnation, unit_ids=unit_ids)
        await _typed(self._stub.Acknowledge(request, timeout=QUICK_SECONDS))

    async def retire(self, term: int, incarnation: str, reason: str) -> None:
        """The trainer's process ends, to be started anew."""
        request = pb.RetireRequest(term=term, incarnation=incarnation, reason=reason)
        await _typed(self._stub.Retire(request, timeout=QUICK_SECONDS))

    async def artifact(self, unit: pb.UnitRef) -> pb.ArtifactOutcome:
        call = self._stub.AwaitArtifact(unit, timeout=self._unit_seconds)
        return cast("pb.ArtifactOutcome", await _typed(call))

    async def close(self) -> None:
        await self._channel.close(None)


async def _typed(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


async def _unit_frames(unit: pb.Unit, payload: bytes) -> AsyncIterator[pb.UnitFrame]:
    yield pb.UnitFrame(unit=unit)
    for part in frames(payload):
        yield pb.UnitFrame(payload=part)


async def _collect(call: AsyncIterable[pb.OutcomeFrame]) -> Outcome:
    header: pb.UnitOutcome | None = None
    parts: list[bytes] = []
    try:
        async for frame in call:
            if frame.WhichOneof("frame") == "outcome":
                header = frame.outcome
            else:
                parts.append(frame.payload)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    payload = b"".join(parts)
    if header is None or header.payload_bytes != len(payload):
        raise ContractViolation("trainer: the outcome's frames are not what its header says")
    return Outcome(header, payload)
