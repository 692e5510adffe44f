"""The trainer double: the real protocol (fence, records, slots, artifacts), integer numbers.

    python -m tests.doubles.fake_trainer --listen 127.0.0.1:0 --port-file F --scheduler HOST:PORT[,HOST:PORT] \
        --store-root DIR [--control FILE] [--journal FILE] [--slots 8]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
from tinkermesh.v1 import scheduler_pb2, types_pb2
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc

from services.common.cells import FIRST_CELL, cell_suffix
from services.common.errors import InvalidInput, StaleFence, Stopping, Unavailable, UnknownId
from services.common.frames import frames
from services.common.grpc_boundary import Context
from services.common.publication_fence import PublicationFence
from services.trainer import metrics
from tests.doubles.faults import Faults
from tests.doubles.journal import Journal
from tests.doubles.process import engine_parser, run_service, serve_until_signal
from tests.doubles.registration import RegisteredServer
from tests.doubles.unit_book import Recorded, UnitBook
from tests.doubles.unit_runner import Slot, UnitRunner

log = logging.getLogger(__name__)

POOL = "double"
BASE_MODEL = "tinkermesh/double"
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce")
SERVICE = pb.DESCRIPTOR.services_by_name["Trainer"].full_name


def trainer_facts(*, pool: str = POOL, slots: int = 8, unit_tokens: int = 4096) -> types_pb2.PoolFacts:
    return types_pb2.PoolFacts(
        pool=pool,
        base_model=BASE_MODEL if pool == POOL else f"tinkermesh/{pool}",
        model_fingerprint="d0" * 16,
        vocab_size=512,
        max_context=2048,
        dtype="int127",
        arch="Double",
        slots=slots,
        max_rank=32,
        alpha=32.0,
        train_attn=True,
        train_mlp=True,
        train_unembed=True,
        losses=LOSSES,
        unit_token_budget=unit_tokens,
    )


class FakeTrainer(RegisteredServer, pb_grpc.TrainerServicer):
    """In a test's own loop: `await start(...)`, use `.faults`, `.journal`, `.runner`, `await stop()`.

    `refuses`: units it does not take any more, as a trainer does that ends in order.
    """

    def __init__(
        self,
        store_root: Path,
        *,
        facts: types_pb2.PoolFacts | None = None,
        trainer_id: str = "",
        cell: str = FIRST_CELL,
        control: Path | None = None,
        journal: Path | None = None,
    ) -> None:
        super().__init__(SERVICE)
        self.facts = facts or trainer_facts()
        self.trainer_id = trainer_id or f"trainer-double{cell_suffix(cell, '-')}"
        self.cell = cell
        self.incarnation = uuid.uuid4().hex
        self.faults = Faults(control)
        self.journal = Journal(journal, self.incarnation)
        self.book = UnitBook(self.incarnation)
        self.refuses: Callable[[pb.Unit], bool] = lambda unit: False
        slots = [Slot() for _ in range(self.facts.slots)]
        self.fence = PublicationFence(store_root, self.facts.pool, self.incarnation, cell)
        self.runner = UnitRunner(store_root, slots, self.faults, self.journal, self.fence, self.supersede)
        metrics.watching(self.slot_states, lambda: 0, lambda: self.runner.publishing, 16)

    def add_to(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_TrainerServicer_to_server(self, server)

    def registration(self) -> scheduler_pb2.RegisterTrainerRequest:
        return scheduler_pb2.RegisterTrainerRequest(
            trainer_id=self.trainer_id,
            incarnation=self.incarnation,
            address=self.address,
            facts=self.facts,
            cell=self.cell,
        )

    async def Describe(self, request: pb.DescribeTrainerRequest, context: Context) -> pb.TrainerDescription:
        return pb.TrainerDescription(
            trainer_id=self.trainer_id,
            incarnation=self.incarnation,
            term=self.book.term,
            facts=self.facts,
            slots=self.slot_states(),
            running_unit=self.book.running_unit,
            world_size=1,
        )

    def slot_states(self) -> list[pb.SlotState]:
        return [_slot_state(n, slot) for n, slot in enumerate(self.runner.slots)]

    async def Takeover(self, request: pb.TakeoverRequest, context: Context) -> pb.TakeoverReply:
        self.book.check(request.term, request.incarnation)
        if request.token:
            self._raise_fence(request.token)
        return pb.TakeoverReply(finished_units=self.book.finished(), running_units=self.book.running())

    def _raise_fence(self, token: int) -> None:
        try:
            self.fence.raise_to(token)
        except StaleFence as error:
            log.warning("refused: Takeover: %s", error)
            if reason := self.fence.superseded:
                self.supersede(reason)
            raise

    async def Execute(
        self, request_iterator: AsyncIterator[pb.UnitFrame], context: Context
    ) -> AsyncIterator[pb.OutcomeFrame]:
        unit, payload = await _receive(request_iterator)
        self.book.check(unit.term, unit.incarnation)
        repeated = self.book.known(unit.unit_id)
        if not repeated and self.refuses(unit):
            raise Stopping("this trainer is stopping")
        task = self.book.start(unit, lambda: self.runner.run(unit, payload))
        recorded = await self.book.outcome(task, unit.unit_id)
        if not repeated and unit.unit_id in self.runner.reply_dropped:
            raise Unavailable("injected: the reply is dropped after execution")
        for frame in _frames(recorded):
            yield frame

    async def Attach(self, request: pb.UnitRef, context: Context) -> AsyncIterator[pb.OutcomeFrame]:
        self.book.check(request.term, request.incarnation)
        for frame in _frames(await self.book.outcome(self.book.find(request.unit_id), request.unit_id)):
            yield frame

    async def Acknowledge(self, request: pb.AcknowledgeRequest, context: Context) -> pb.AcknowledgeReply:
        self.book.check(request.term, request.incarnation)
        self.book.acknowledge(list(request.unit_ids))
        return pb.AcknowledgeReply()

    async def Retire(self, request: pb.RetireRequest, context: Context) -> pb.RetireReply:
        self.book.check(request.term, request.incarnation)
        self.supersede(f"the scheduler asks for a restart: {request.reason}")
        return pb.RetireReply()

    async def AwaitArtifact(self, request: pb.UnitRef, context: Context) -> pb.ArtifactOutcome:
        self.book.check(request.term, request.incarnation)
        artifact = self.runner.artifacts.get(request.unit_id)
        if artifact is None:
            raise UnknownId(f"unit {request.unit_id} captured nothing in this incarnation")
        return await asyncio.shield(artifact)


def _slot_state(number: int, slot: Slot) -> pb.SlotState:
    state = pb.SlotState(slot=number, load_number=slot.load_number, loaded=slot.held is not None)
    if slot.held is not None:
        state.layout.CopyFrom(slot.held.layout)
        state.optimizer_step, state.window_open = slot.held.step, slot.held.window_datums > 0
    return state


async def _receive(incoming: AsyncIterator[pb.UnitFrame]) -> tuple[pb.Unit, bytes]:
    """Raises InvalidInput when the frames do not make one whole unit."""
    unit: pb.Unit | None = None
    parts: list[bytes] = []
    async for frame in incoming:
        if unit is None:
            if frame.WhichOneof("frame") != "unit":
                raise InvalidInput("first frame is not a unit")
            unit = frame.unit
        else:
            parts.append(frame.payload)
    payload = b"".join(parts)
    if unit is None or len(payload) != unit.payload_bytes:
        raise InvalidInput(f"unit announces {unit.payload_bytes if unit else 0} payload bytes, got {len(payload)}")
    return unit, payload


def _frames(recorded: Recorded) -> list[pb.OutcomeFrame]:
    outcome, payload = recorded
    return [pb.OutcomeFrame(outcome=outcome), *(pb.OutcomeFrame(payload=part) for part in frames(payload))]


def _arguments() -> argparse.Namespace:
    parser = engine_parser(__doc__)
    parser.add_argument("--trainer-id", default="")
    parser.add_argument("--cell", default=FIRST_CELL)
    parser.add_argument("--pool", default=POOL)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--unit-tokens", type=int, default=4096)
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> None:
    facts = trainer_facts(pool=arguments.pool, slots=arguments.slots, unit_tokens=arguments.unit_tokens)
    trainer = FakeTrainer(
        arguments.store_root,
        facts=facts,
        trainer_id=arguments.trainer_id,
        cell=arguments.cell,
        control=arguments.control,
        journal=arguments.journal,
    )
    await trainer.start(arguments.listen, arguments.scheduler)
    ordered = await serve_until_signal(trainer.address, arguments.port_file, trainer.superseded)
    await trainer.stop()
    if not ordered:
        raise SystemExit(1)


def main() -> None:
    parsed = _arguments()
    name = parsed.trainer_id or f"trainer-double{cell_suffix(parsed.cell, '-')}"
    run_service("trainer", name, _main(parsed), metrics.TRAINER)


if __name__ == "__main__":
    main()
