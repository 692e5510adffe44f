"""The trainer double keeps the trainer's contract, so that what passes against it can pass for real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import trainer_pb2_grpc as pb_grpc
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, encode
from services.common.grpc_channel import open_channel
from tests.doubles import published
from tests.doubles.fake_trainer import FakeTrainer
from tests.doubles.journal import datum_counts, unit_counts

FIELDS = ["weights"]
LAYOUT = types.AdapterLayout(rank=4, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)
CROSS_ENTROPY = types.LossConfig(loss_fn="cross_entropy")


class Driver:
    """Sends units to a double under one term."""

    def __init__(self, trainer: FakeTrainer, stub: pb_grpc.TrainerStub) -> None:
        self.trainer, self.stub, self.term, self._next = trainer, stub, 1, 0

    def unit(self, unit_id: str = "", payload: bytes = b"", **work: object) -> tuple[pb.Unit, bytes]:
        self._next += 1
        unit = pb.Unit(
            term=self.term,
            incarnation=self.trainer.incarnation,
            unit_id=unit_id or f"u{self._next}",
            payload_bytes=len(payload),
            **work,
        )
        return unit, payload

    async def send(self, unit: pb.Unit, payload: bytes = b"") -> tuple[pb.UnitOutcome, bytes]:
        async def outgoing() -> AsyncIterator[pb.UnitFrame]:
            yield pb.UnitFrame(unit=unit)
            if payload:
                yield pb.UnitFrame(payload=payload)

        outcome, data = pb.UnitOutcome(), b""
        async for frame in self.stub.Execute(outgoing(), timeout=30):
            if frame.WhichOneof("frame") == "outcome":
                outcome = frame.outcome
            data += frame.payload
        assert outcome.payload_bytes == len(data)
        return outcome, data

    async def init(self, slot: int = 0, seed: int = 7) -> None:
        await self.send(*self.unit(init=pb.InitSlotWork(slot=slot, model_id="m", layout=LAYOUT, seed=seed)))

    def batch(
        self, datums: list[Datum], slot: int = 0, *, backward: bool = True, load: int = 1
    ) -> tuple[pb.Unit, bytes]:
        item = pb.PassItem(
            request_id="r",
            slot=slot,
            load_number=load,
            lengths=[d.length for d in datums],
            widths=[d.width for d in datums],
        )
        work = pb.PassWork(backward=backward, loss=CROSS_ENTROPY, fields=FIELDS, items=[item])
        return self.unit(payload=encode(datums, FIELDS), **{"pass": work})

    async def step(self, slot: int = 0, load: int = 1) -> pb.UnitOutcome:
        steps = [pb.SlotStep(slot=slot, load_number=load, adam=types.AdamParams(learning_rate=1e-3))]
        return (await self.send(*self.unit(optim=pb.OptimWork(steps=steps))))[0]

    def weights(self, slot: int = 0) -> int:
        held = self.trainer.runner.slots[slot].held
        assert held is not None
        return held.weights


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    trainer = FakeTrainer(tmp_path)
    address = await trainer.start()
    async with open_channel(address) as channel:
        yield Driver(trainer, pb_grpc.TrainerStub(channel))
    await trainer.stop()


def datum(seed: int, length: int = 6) -> Datum:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 512, length).astype(np.int32)
    targets = random.integers(0, 512, (length, 1)).astype(np.int32)
    return Datum(tokens, targets, {"weights": np.ones((length, 1), np.float32)})


async def test_packing_order_in_a_window_changes_no_bit_but_a_duplicate_does(driver: Driver) -> None:
    for slot in (0, 1, 2):
        await driver.init(slot)
    a, b = datum(1), datum(2)
    await driver.send(*driver.batch([a, b], 0))
    await driver.send(*driver.batch([b], 1))
    await driver.send(*driver.batch([a], 1))
    await driver.send(*driver.batch([a, b, b], 2))
    for slot in (0, 1, 2):
        await driver.step(slot)
    assert driver.weights(0) == driver.weights(1)
    assert driver.weights(0) != driver.weights(2)


async def test_repeated_unit_is_answered_from_its_record_IDEM_14(driver: Driver) -> None:
    await driver.init()
    unit = driver.batch([datum(1)])
    first = await driver.send(*unit)
    assert await driver.send(*unit) == first
    assert datum_counts(driver.trainer.journal.entries) == {("r", 0): 1}


async def test_repeat_of_a_running_unit_attaches_to_it_IDEM_14(driver: Driver) -> None:
    await driver.init()
    driver.trainer.faults.add("delay_before", "pass", seconds=0.3)
    unit = driver.batch([datum(1)])
    answers = await asyncio.gather(*(driver.send(*unit) for _ in range(5)))
    assert all(answer == answers[0] for answer in answers)
    assert unit_counts(driver.trainer.journal.entries)[unit[0].unit_id] == 1


async def test_dropped_reply_is_repaired_by_attach(driver: Driver) -> None:
    await driver.init()
    driver.trainer.faults.add("drop_reply", "pass")
    unit, payload = driver.batch([datum(1)])
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await driver.send(unit, payload)
    ref = pb.UnitRef(term=1, incarnation=unit.incarnation, unit_id=unit.unit_id)
    frames = [frame async for frame in driver.stub.Attach(ref, timeout=30)]
    assert frames[0].outcome.unit_id == unit.unit_id
    assert datum_counts(driver.trainer.journal.entries) == {("r", 0): 1}


async def test_older_term_and_other_incarnation_are_refused(driver: Driver) -> None:
    await driver.stub.Takeover(pb.TakeoverRequest(term=5, incarnation=driver.trainer.incarnation))
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await driver.init()
    driver.term = 5
    unit, _ = driver.unit(init=pb.InitSlotWork(slot=0, layout=LAYOUT))
    unit.incarnation = "another"
    with pytest.raises(grpc.aio.AioRpcError, match="ABORTED"):
        await driver.send(unit)


async def test_wrong_load_number_fails_the_unit_and_touches_nothing(driver: Driver) -> None:
    await driver.init()
    before = driver.weights()
    outcome, _ = await driver.send(*driver.batch([datum(1)], load=2))
    assert "load" in outcome.failure.message
    await driver.step()
    stepped = driver.weights()
    await driver.init(1)
    await driver.step(1)
    assert (stepped, before) == (driver.weights(1), before)


async def test_failed_datum_contributes_nothing_to_the_window(driver: Driver) -> None:
    await driver.init(0)
    await driver.init(1)
    driver.trainer.faults.add("fail_datum", "pass", datum=1)
    outcome, data = await driver.send(*driver.batch([datum(1), datum(2)], 0))
    assert [d.HasField("failure") for d in getattr(outcome, "pass").datums] == [False, True]
    assert len(data) == 4 * 6
    await driver.send(*driver.batch([datum(1)], 1))
    await driver.step(0)
    await driver.step(1)
    assert driver.weights(0) == driver.weights(1)


async def test_save_is_the_state_at_capture_and_loads_bitwise_CKPT_07(driver: Driver, tmp_path: Path) -> None:
    await driver.init()
    await driver.send(*driver.batch([datum(1)]))
    await driver.step()
    captured = driver.weights()
    driver.trainer.faults.add("delay_before", "publish", seconds=0.2)
    meta = pb.ArtifactMeta(model_id="m", kind="weights", name="a", layout=LAYOUT)
    save = pb.SaveSlotWork(slot=0, load_number=1, meta=meta, directory="runs/m/weights/a")
    unit, _ = driver.unit(save=save)
    outcome, _ = await driver.send(unit)
    assert outcome.artifact_pending
    assert not (tmp_path / "runs/m/weights/a").exists()
    await driver.send(*driver.batch([datum(2)]))
    await driver.step()
    ref = pb.UnitRef(term=1, incarnation=unit.incarnation, unit_id=unit.unit_id)
    artifact = await driver.stub.AwaitArtifact(ref, timeout=30)
    assert int(published.read_state(tmp_path, artifact.version_directory)["weights"], 16) == captured
    load = pb.LoadSlotWork(slot=3, layout=LAYOUT, directory=artifact.version_directory, optimizer=True)
    await driver.send(*driver.unit(load=load))
    await driver.send(*driver.batch([datum(2)], 3))
    await driver.step(3)
    assert driver.weights(3) == driver.weights(0)


async def test_existing_name_is_refused_unless_it_is_the_same_save(driver: Driver) -> None:
    await driver.init()
    meta = pb.ArtifactMeta(model_id="m", kind="weights", name="a", layout=LAYOUT, created_unix_ms=1)
    save = pb.SaveSlotWork(slot=0, load_number=1, meta=meta, directory="runs/m/weights/a")
    unit, _ = driver.unit(save=save)
    await driver.send(unit)
    ref = pb.UnitRef(term=1, incarnation=unit.incarnation, unit_id=unit.unit_id)
    await driver.stub.AwaitArtifact(ref, timeout=30)
    again, _ = await driver.send(*driver.unit(save=save))
    assert again.artifact_pending
    save.meta.created_unix_ms = 2
    refused, _ = await driver.send(*driver.unit(save=save))
    assert refused.failure.category == types.FAILURE_CATEGORY_USER
