"""A unit takes effect once, however often and by whomever it is sent."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import InvalidInput, StaleFence, Stopping, UnknownId, from_rpc_error
from services.trainer import server
from tests.contract.trainer.harness import Rig, collect, datum, unit_frames
from tests.contract.trainer.trainer_process import WAIT_SECONDS
from tests.doubles.eventually import eventually


class Reached:
    """How often the server has come to one of its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        real = getattr(server, step)

        def noted(*arguments: Any) -> Any:
            self._calls.put(None)
            return real(*arguments)

        monkeypatch.setattr(server, step, noted)

    async def times(self, count: int) -> None:
        for _ in range(count):
            await asyncio.to_thread(self._calls.get, True, WAIT_SECONDS)


async def test_repeated_unit_has_one_effect_and_the_recorded_outcome_IDEM_14(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    unit, payload = client.units.train([(0, [datum(5), datum(3, seed=1)])])
    first = await client.execute(unit, payload)
    digest = trainer.engine.slot_digest(0)
    for _ in range(3):
        assert await client.execute(unit, payload) == first
    assert trainer.engine.passes == 1
    assert trainer.engine.slot_digest(0) == digest
    assert len(first[1]) == 4 * 8


async def test_dropped_reply_then_resend_runs_once_and_cancellation_does_not_stop_the_unit_MESH_01(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    unit, payload = client.units.train([(0, [datum()])])
    trainer.engine.started.clear()
    trainer.engine.gate.clear()
    call = client.stub.Execute(unit_frames(unit, payload), timeout=WAIT_SECONDS)
    reading = asyncio.create_task(collect(call))
    assert await asyncio.to_thread(trainer.engine.started.wait, WAIT_SECONDS)
    call.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await reading
    trainer.engine.gate.set()
    outcome, scores = await client.execute(unit, payload)
    assert not outcome.HasField("failure")
    assert len(scores) == 4 * 6
    assert trainer.engine.passes == 1


async def test_repeat_of_a_running_unit_attaches_to_it_MESH_01(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    trainer, client = rig
    await client.done(client.units.init(0))
    waiting = Reached(monkeypatch, "_outcome")
    unit, payload = client.units.train([(0, [datum()])])
    trainer.engine.started.clear()
    trainer.engine.gate.clear()
    first = asyncio.create_task(client.execute(unit, payload))
    assert await asyncio.to_thread(trainer.engine.started.wait, WAIT_SECONDS)
    takeover = await client.stub.Takeover(pb.TakeoverRequest(term=5, incarnation=client.units.incarnation))
    assert list(takeover.running_units) == [unit.unit_id]
    client.units.term = 5
    unit.term = 5
    again = asyncio.create_task(client.execute(unit, payload))
    attached = asyncio.create_task(collect(client.stub.Attach(client.ref(unit), timeout=WAIT_SECONDS)))
    await waiting.times(3)
    assert not again.done()
    assert not attached.done()
    trainer.engine.gate.set()
    outcomes = await asyncio.gather(first, again, attached)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert trainer.engine.passes == 1


async def test_a_unit_behind_the_order_to_end_is_refused_and_never_run_MESH_04(rig: Rig):
    trainer, client = rig
    await client.done(client.units.init(0))
    trainer.engine.started.clear()
    trainer.engine.gate.clear()
    running = asyncio.create_task(client.execute(client.units.train([(0, [datum()])])))
    assert await asyncio.to_thread(trainer.engine.started.wait, WAIT_SECONDS)
    trainer.order_end()
    unit, payload = client.units.train([(0, [datum()])])
    behind = asyncio.create_task(client.execute(unit, payload))

    async def accepted() -> bool:
        request = pb.TakeoverRequest(term=client.units.term, incarnation=client.units.incarnation)
        return unit.unit_id in (await client.stub.Takeover(request)).running_units

    await eventually(accepted)
    trainer.engine.gate.set()
    assert not (await running)[0].HasField("failure")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await behind
    assert isinstance(from_rpc_error(caught.value), Stopping)
    assert trainer.engine.passes == 1


async def test_unit_id_with_other_work_is_refused(rig: Rig):
    _, client = rig
    unit = client.units.init(0)
    await client.done(unit)
    unit.init.seed = 99
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.execute(unit)
    assert isinstance(from_rpc_error(caught.value), InvalidInput)


@pytest.mark.parametrize("rpc", ["Execute", "Takeover", "Attach", "Acknowledge", "AwaitArtifact"])
@pytest.mark.parametrize("stale", ["term", "incarnation"])
async def test_older_term_and_other_incarnation_are_refused_by_every_rpc_IDEM_14(rig: Rig, rpc: str, stale: str):
    trainer, client = rig
    await client.stub.Takeover(pb.TakeoverRequest(term=9, incarnation=client.units.incarnation))
    before = trainer.digests()
    term, incarnation = (8, client.units.incarnation) if stale == "term" else (10, "another")
    unit = client.units.init(0)
    unit.term, unit.incarnation = term, incarnation
    requests = {
        "Takeover": pb.TakeoverRequest(term=term, incarnation=incarnation),
        "Attach": pb.UnitRef(term=term, incarnation=incarnation, unit_id="u"),
        "Acknowledge": pb.AcknowledgeRequest(term=term, incarnation=incarnation),
        "AwaitArtifact": pb.UnitRef(term=term, incarnation=incarnation, unit_id="u"),
    }
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if rpc in ("Execute", "Attach"):
            request = unit_frames(unit, b"") if rpc == "Execute" else requests[rpc]
            await collect(getattr(client.stub, rpc)(request, timeout=WAIT_SECONDS))
        else:
            await getattr(client.stub, rpc)(requests[rpc], timeout=WAIT_SECONDS)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert isinstance(from_rpc_error(caught.value), StaleFence)
    assert trainer.digests() == before


async def test_takeover_while_a_payload_travels_refuses_the_old_term(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    trainer, client = rig
    await client.done(client.units.init(0))
    unit, payload = client.units.train([(0, [datum()])])
    reading, hold = Reached(monkeypatch, "_payload"), asyncio.Event()

    async def slowly():
        yield pb.UnitFrame(unit=unit)
        await hold.wait()
        yield pb.UnitFrame(payload=payload)

    call = asyncio.create_task(collect(client.stub.Execute(slowly(), timeout=WAIT_SECONDS)))
    await reading.times(1)
    await client.stub.Takeover(pb.TakeoverRequest(term=2, incarnation=client.units.incarnation))
    hold.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert isinstance(from_rpc_error(caught.value), StaleFence)
    assert trainer.engine.passes == 0


async def test_takeover_lists_finished_units_until_acknowledged_and_acknowledgement_drops_the_payload(rig: Rig):
    trainer, client = rig
    init = client.units.init(0)
    await client.done(init)
    unit, payload = client.units.train([(0, [datum()])])
    await client.execute(unit, payload)
    takeover = pb.TakeoverRequest(term=1, incarnation=client.units.incarnation)
    assert set((await client.stub.Takeover(takeover)).finished_units) == {init.unit_id, unit.unit_id}
    acknowledge = pb.AcknowledgeRequest(
        term=1, incarnation=client.units.incarnation, unit_ids=[unit.unit_id, "unknown"]
    )
    await client.stub.Acknowledge(acknowledge)
    assert list((await client.stub.Takeover(takeover)).finished_units) == [init.unit_id]
    outcome, scores = await client.execute(unit, payload)
    assert scores == b""
    assert len(getattr(outcome, "pass").datums) == 1
    assert trainer.engine.passes == 1


async def test_attach_to_a_unit_never_seen_is_not_found(rig: Rig):
    _, client = rig
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(client.stub.Attach(client.ref(pb.Unit(unit_id="never")), timeout=WAIT_SECONDS))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert isinstance(from_rpc_error(caught.value), UnknownId)


async def test_payload_of_another_size_than_announced_is_refused(rig: Rig):
    _, client = rig
    await client.done(client.units.init(0))
    unit, payload = client.units.train([(0, [datum()])])
    for wrong in (payload[:-4], payload + b"\0\0\0\0"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.execute(unit, wrong)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_large_payloads_travel_in_frames(tmp_path, rig: Rig):
    _, client = rig
    await client.done(client.units.init(0))
    datums = [datum(60, seed=n) for n in range(2500)]
    unit, payload = client.units.train([(0, datums)], backward=False)
    assert len(payload) > 1 << 20
    outcome, scores = await client.execute(unit, payload)
    assert len(getattr(outcome, "pass").datums) == 2500
    assert np.frombuffer(scores, "<f4").shape == (2500 * 60,)
