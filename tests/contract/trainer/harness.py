"""A trainer to test against, in this process with hooks, and units to send to it or to a real one."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc
from tinkermesh.v1.types_pb2 import AdamParams, AdapterLayout, LossConfig

from services.common.datum_blocks import Datum, encode
from services.common.frames import frames
from services.common.grpc_channel import open_channel
from services.trainer import facts
from services.trainer.app import Leader, build_engine
from services.trainer.control import Alone
from services.trainer.rank_loop import Commands, Stop
from services.trainer.ranks import Ranks
from services.trainer.settings import Settings
from tests.contract.trainer.stub_engine import VOCABULARY, StubEngine
from tests.contract.trainer.trainer_process import WAIT_SECONDS, read_port

STUB = "tests.contract.trainer.stub_engine:build"
LAYOUT = AdapterLayout(rank=4, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
ADAM = AdamParams(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8)
MODEL = "11111111-1111-4111-8111-111111111111:train:0"


def model_directory(root: Path) -> Path:
    """The least that has facts: the stub never reads it."""
    directory = root / "stub-model"
    directory.mkdir(exist_ok=True)
    config = {"architectures": ["Stub"], "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(b"stub")
    return directory


def stub_settings(root: Path, **changes: object) -> Settings:
    fields: dict[str, object] = {
        "model_path": str(model_directory(root)),
        "store_root": str(root / "store"),
        "listen": "127.0.0.1:0",
        "port_file": str(root / "port"),
        "pool": "stub",
        "base_model": "tinkermesh/stub",
        "slots": 4,
        "max_rank": 8,
        "engine": STUB,
    }
    return Settings(**{**fields, **changes})  # type: ignore[arg-type]


class Units:
    """Makes units for one incarnation and term."""

    def __init__(self, incarnation: str, term: int = 1) -> None:
        self.incarnation = incarnation
        self.term = term
        self.base_model = "tinkermesh/stub"

    def new(self, unit_id: str = "", **work: object) -> pb.Unit:
        unit = pb.Unit(term=self.term, incarnation=self.incarnation, unit_id=unit_id or uuid.uuid4().hex)
        for kind, body in work.items():
            getattr(unit, kind.rstrip("_")).CopyFrom(body)
        return unit

    def init(self, slot: int, *, seed: int = 7, layout: AdapterLayout = LAYOUT) -> pb.Unit:
        return self.new(init=pb.InitSlotWork(slot=slot, model_id=MODEL, layout=layout, seed=seed))

    def unload(self, slot: int) -> pb.Unit:
        return self.new(unload=pb.UnloadSlotWork(slot=slot))

    def optim(self, *slots: int, load: int = 1, adam: AdamParams = ADAM) -> pb.Unit:
        steps = [pb.SlotStep(slot=s, load_number=load, adam=adam, request_id=f"r{s}") for s in slots]
        return self.new(optim=pb.OptimWork(steps=steps))

    def train(
        self, items: Sequence[tuple[int, Sequence[Datum]]], *, load: int = 1, backward: bool = True
    ) -> tuple[pb.Unit, bytes]:
        work = pb.PassWork(backward=backward, loss=LossConfig(loss_fn="cross_entropy"), fields=["weights"])
        for slot, datums in items:
            item = work.items.add(request_id=f"r{slot}", slot=slot, load_number=load)
            item.lengths.extend(d.length for d in datums)
            item.widths.extend(d.width for d in datums)
        payload = encode([d for _, datums in items for d in datums], ["weights"])
        unit = self.new(pass_=work)
        unit.payload_bytes = len(payload)
        return unit, payload

    def save(self, slot: int, name: str, *, load: int = 1, overwrite: bool = False, created: int = 0) -> pb.Unit:
        meta = self.meta("weights", name, created)
        work = pb.SaveSlotWork(
            slot=slot, load_number=load, meta=meta, directory=f"runs/{MODEL}/weights/{name}", overwrite=overwrite
        )
        return self.new(save=work)

    def snapshot(self, slot: int, name: str, *, load: int = 1, created: int = 0) -> pb.Unit:
        meta = self.meta("sampler_weights", name, created)
        directory = f"runs/{MODEL}/sampler_weights/{name}"
        return self.new(snapshot=pb.SnapshotSlotWork(slot=slot, load_number=load, meta=meta, directory=directory))

    def load(
        self, slot: int, directory: str, *, optimizer: bool = True, into: int = 0, layout: AdapterLayout = LAYOUT
    ) -> pb.Unit:
        work = pb.LoadSlotWork(
            slot=slot,
            model_id=MODEL,
            layout=layout,
            directory=directory,
            optimizer=optimizer,
            into_loaded=bool(into),
            load_number=into,
        )
        return self.new(load=work)

    def meta(self, kind: str, name: str, created: int = 0, layout: AdapterLayout = LAYOUT) -> pb.ArtifactMeta:
        return pb.ArtifactMeta(
            tenant_id="tenant",
            ownership_mac="mac",
            model_id=MODEL,
            kind=kind,
            name=name,
            base_model=self.base_model,
            layout=layout,
            created_unix_ms=created or time.time_ns() // 1_000_000,
        )


def datum(length: int = 6, seed: int = 0, weight: float = 1.0) -> Datum:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, VOCABULARY, length).astype(np.int32)
    targets = random.integers(0, VOCABULARY, (length, 1)).astype(np.int32)
    return Datum(tokens, targets, {"weights": np.full((length, 1), weight, np.float32)})


class Client:
    """A scheduler's side of the RPC, without a scheduler."""

    def __init__(self, stub: pb_grpc.TrainerStub, units: Units) -> None:
        self.stub = stub
        self.units = units

    async def execute(
        self, unit: pb.Unit | tuple[pb.Unit, bytes], payload: bytes = b""
    ) -> tuple[pb.UnitOutcome, bytes]:
        if isinstance(unit, tuple):
            unit, payload = unit
        return await collect(self.stub.Execute(unit_frames(unit, payload), timeout=WAIT_SECONDS))

    async def done(self, unit: pb.Unit | tuple[pb.Unit, bytes]) -> pb.UnitOutcome:
        outcome, _ = await self.execute(unit)
        assert not outcome.HasField("failure"), outcome.failure.message
        assert not [s for s in outcome.slots if s.HasField("failure")], outcome
        return outcome

    async def refused(self, unit: pb.Unit | tuple[pb.Unit, bytes]) -> str:
        outcome, _ = await self.execute(unit)
        assert outcome.HasField("failure"), outcome
        return f"{outcome.failure.category}: {outcome.failure.message}"

    def ref(self, unit: pb.Unit) -> pb.UnitRef:
        return pb.UnitRef(term=self.units.term, incarnation=self.units.incarnation, unit_id=unit.unit_id)

    async def published(self, unit: pb.Unit) -> str:
        """Runs a save or snapshot to its end; the version directory relative to the store."""
        artifact = await self.artifact(unit)
        assert not artifact.HasField("failure"), artifact.failure.message
        return artifact.version_directory

    async def artifact(self, unit: pb.Unit) -> pb.ArtifactOutcome:
        outcome = await self.done(unit)
        assert outcome.artifact_pending
        return await self.stub.AwaitArtifact(self.ref(unit), timeout=WAIT_SECONDS)


async def collect(call: AsyncIterator[pb.OutcomeFrame]) -> tuple[pb.UnitOutcome, bytes]:
    outcome, parts = pb.UnitOutcome(), []
    async for frame in call:
        if frame.WhichOneof("frame") == "outcome":
            outcome = frame.outcome
        else:
            parts.append(frame.payload)
    payload = b"".join(parts)
    assert len(payload) == outcome.payload_bytes
    return outcome, payload


async def unit_frames(unit: pb.Unit, payload: bytes) -> AsyncIterator[pb.UnitFrame]:
    yield pb.UnitFrame(unit=unit)
    for part in frames(payload):
        yield pb.UnitFrame(payload=part)


class LocalTrainer:
    """The leader of a world of one in a thread of this process, around a stub engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Path(settings.store_root)
        self.store.mkdir(parents=True, exist_ok=True)
        self._port_file = Path(settings.port_file)
        pool = facts.pool_facts(settings)
        engine = build_engine(settings, pool)
        assert isinstance(engine, StubEngine)
        self.engine = engine
        self._commands: Commands = queue.SimpleQueue()
        self.leader = Leader(settings, pool, self.engine, Ranks(Alone()), self._commands)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.leader.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error

    async def start(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{await read_port(self._port_file)}"

    def order_end(self) -> None:
        """As SIGTERM: the running unit ends first."""
        self._commands.put(Stop())

    async def stop(self) -> None:
        self.order_end()
        await asyncio.to_thread(self._thread.join, WAIT_SECONDS)
        assert not self._thread.is_alive()
        assert self.error is None

    def digests(self) -> list[str]:
        return [self.engine.slot_digest(slot) for slot in range(self.settings.slots)]


Rig = tuple[LocalTrainer, Client]


@asynccontextmanager
async def local_trainer(root: Path, **changes: object) -> AsyncIterator[Rig]:
    trainer = LocalTrainer(stub_settings(root, **changes))
    address = await trainer.start()
    try:
        async with connected(address) as client:
            yield trainer, client
    finally:
        await trainer.stop()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    async with open_channel(address) as channel:
        stub = pb_grpc.TrainerStub(channel)
        description = await stub.Describe(pb.DescribeTrainerRequest(), timeout=WAIT_SECONDS)
        units = Units(description.incarnation)
        units.base_model = description.facts.base_model
        yield Client(stub, units)


async def train(client: Client, slot: int, steps: int, *, load: int = 1, seed: int = 0) -> None:
    for step in range(steps):
        await client.done(client.units.train([(slot, [datum(seed=seed + step)])], load=load))
        await client.done(client.units.optim(slot, load=load))
