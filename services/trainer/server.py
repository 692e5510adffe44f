"""The Trainer service: the fence and the records stand before the queue of the main thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.errors import InvalidInput, Stopping, TooLarge, Unavailable, UnknownId
from services.common.frames import frames
from services.common.grpc_boundary import Context
from services.common.telemetry import current_traceparent
from services.trainer.fence import Fence
from services.trainer.records import UnitRecord, UnitRecords
from services.trainer.slot_table import SlotTable

SERVICE = pb.DESCRIPTOR.services_by_name["Trainer"].full_name
STOPPING = "this trainer is stopping; send the unit to the next incarnation"


@dataclass(frozen=True, slots=True)
class Job:
    """One unit on its way to the main thread."""

    unit: pb.Unit
    payload: bytes
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    trainer_id: str
    facts: PoolFacts
    world: int


class TrainerService(pb_grpc.TrainerServicer):
    """All of it runs in the server's event loop; `enqueue` hands over to the main thread.

    `raise_fence` raises the store's (it waits for the store); StaleFence when that is too late.
    `retire` ends the process with an error.
    """

    def __init__(
        self,
        identity: Identity,
        fence: Fence,
        records: UnitRecords,
        table: SlotTable,
        enqueue: Callable[[Job], None],
        raise_fence: Callable[[int], None],
        retire: Callable[[str], None],
        *,
        max_unit_bytes: int,
    ) -> None:
        self._identity = identity
        self._fence = fence
        self._records = records
        self._table = table
        self._enqueue = enqueue
        self._raise_fence = raise_fence
        self._retire = retire
        self._max_unit_bytes = max_unit_bytes
        self._admitting = True

    def stop_admission(self) -> None:
        """New units are refused from here on; repeats, waits and reads go on."""
        self._admitting = False

    async def Describe(self, request: pb.DescribeTrainerRequest, context: Context) -> pb.TrainerDescription:
        return pb.TrainerDescription(
            trainer_id=self._identity.trainer_id,
            incarnation=self._fence.incarnation,
            term=self._fence.term,
            facts=self._identity.facts,
            slots=self._table.states(),
            running_unit=next(iter(self._records.running()), ""),
            world_size=self._identity.world,
        )

    async def Takeover(self, request: pb.TakeoverRequest, context: Context) -> pb.TakeoverReply:
        self._fence.pass_through(request.term, request.incarnation, "Takeover")
        if request.token:
            await self._raise(request.token)
        return pb.TakeoverReply(finished_units=self._records.finished(), running_units=self._records.running())

    async def Execute(
        self, request_iterator: AsyncIterator[pb.UnitFrame], context: Context
    ) -> AsyncIterator[pb.OutcomeFrame]:
        unit, payload = await self._receive(request_iterator)
        # Again: while the payload came in, another replica may have taken over.
        self._fence.pass_through(unit.term, unit.incarnation, "Execute", unit.unit_id)
        async for frame in _outcome(self._accept(unit, payload)):
            yield frame

    async def Attach(self, request: pb.UnitRef, context: Context) -> AsyncIterator[pb.OutcomeFrame]:
        self._fence.pass_through(request.term, request.incarnation, "Attach", request.unit_id)
        async for frame in _outcome(self._records.find(request.unit_id)):
            yield frame

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Context) -> pb.AcknowledgeReply:
        self._fence.pass_through(request.term, request.incarnation, "Acknowledge")
        self._records.acknowledge(request.unit_ids)
        return pb.AcknowledgeReply()

    async def Retire(self, request: pb.RetireRequest, context: Context) -> pb.RetireReply:
        self._fence.pass_through(request.term, request.incarnation, "Retire")
        self._retire(f"the scheduler asks for a restart: {request.reason[:500]}")
        return pb.RetireReply()

    async def AwaitArtifact(self, request: pb.UnitRef, context: Context) -> pb.ArtifactOutcome:
        self._fence.pass_through(request.term, request.incarnation, "AwaitArtifact", request.unit_id)
        record = self._records.find(request.unit_id)
        await record.done.wait()
        if not record.outcome.artifact_pending:
            raise UnknownId(f"unit {request.unit_id} captured nothing to wait for")
        await record.published.wait()
        return record.artifact

    async def _raise(self, token: int) -> None:
        try:
            await asyncio.to_thread(self._raise_fence, token)
        except OSError as error:
            raise Unavailable(
                f"the store's fence cannot be raised ({error.strerror}); check its space, permissions and mount"
            ) from error

    def _accept(self, unit: pb.Unit, payload: bytes) -> UnitRecord:
        if not self._admitting and not self._records.knows(unit.unit_id):
            raise Stopping(STOPPING)
        record, new = self._records.claim(unit)
        if new:
            self._enqueue(Job(unit, payload, current_traceparent()))
        return record

    async def _receive(self, incoming: AsyncIterator[pb.UnitFrame]) -> tuple[pb.Unit, bytes]:
        """Raises StaleFence before reading any payload, InvalidInput when the frames are not one unit."""
        first = await anext(aiter(incoming), None)
        if first is None or first.WhichOneof("frame") != "unit":
            raise InvalidInput("the first frame of Execute must be a unit")
        unit = first.unit
        self._fence.pass_through(unit.term, unit.incarnation, "Execute", unit.unit_id)
        if not unit.unit_id or unit.WhichOneof("work") is None:
            raise InvalidInput("a unit needs a unit_id and one kind of work")
        if unit.payload_bytes > self._max_unit_bytes:
            raise TooLarge(f"unit has {unit.payload_bytes} payload bytes, this trainer takes {self._max_unit_bytes}")
        return unit, await _payload(incoming, unit.payload_bytes)


async def _payload(incoming: AsyncIterator[pb.UnitFrame], expected: int) -> bytes:
    parts, size = [], 0
    async for frame in incoming:
        if frame.WhichOneof("frame") != "payload":
            raise InvalidInput("Execute carries one unit; further frames must be payload")
        parts.append(frame.payload)
        size += len(frame.payload)
        if size > expected:
            break
    if size != expected:
        raise InvalidInput(f"unit announced {expected} payload bytes, {size} came")
    return b"".join(parts)


async def _outcome(record: UnitRecord) -> AsyncIterator[pb.OutcomeFrame]:
    """Waits for the unit. A caller that goes away stops waiting; the unit goes on."""
    await record.done.wait()
    if record.left:
        raise Stopping(STOPPING)
    outcome, payload = record.outcome, record.payload
    yield pb.OutcomeFrame(outcome=outcome)
    for part in frames(payload):
        yield pb.OutcomeFrame(payload=part)
