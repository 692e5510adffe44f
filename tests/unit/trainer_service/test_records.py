from __future__ import annotations

import asyncio
import queue

import pytest
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import ContractViolation, Gone, InvalidInput, StaleFence, Stopping, Unavailable, UnknownId
from services.trainer import records as module
from services.trainer.fence import Fence
from services.trainer.rank_loop import Commands, Stop, left_behind
from services.trainer.records import UnitRecords
from services.trainer.server import Job, _outcome


def unit(unit_id: str, term: int = 1) -> pb.Unit:
    return pb.Unit(term=term, incarnation="i", unit_id=unit_id, unload=pb.UnloadSlotWork(slot=1))


def settle(records: UnitRecords, unit_id: str, payload: bytes = b"") -> None:
    records.claim(unit(unit_id))
    records.finish(unit_id, pb.UnitOutcome(unit_id=unit_id, payload_bytes=len(payload)), payload)
    records.acknowledge([unit_id])


def test_claim_is_new_once_and_the_term_does_not_matter_IDEM_14():
    records = UnitRecords()
    record, new = records.claim(unit("u"))
    again, repeated = records.claim(unit("u", term=2))
    assert (new, repeated) == (True, False)
    assert again is record


def test_other_work_under_a_known_id_is_refused():
    records = UnitRecords()
    records.claim(unit("u"))
    other = unit("u")
    other.unload.slot = 2
    with pytest.raises(InvalidInput, match="other work"):
        records.claim(other)


def test_memory_of_acknowledged_units_is_bounded_and_none_runs_again():
    records = UnitRecords(kept_outcomes=2, kept_ids=3)
    for number in range(8):
        settle(records, f"u{number}", b"xxxx")
    assert list(records._records) == ["u6", "u7"]
    assert list(records._forgotten) == ["u3", "u4", "u5"]
    assert records._open_bytes == 0
    with pytest.raises(Gone, match="not run again"):
        records.claim(unit("u4"))
    with pytest.raises(Gone):
        records.find("u4")


async def test_a_unit_this_life_does_not_come_to_is_told_to_its_waiters_and_not_known_any_more():
    records = UnitRecords()
    record, _ = records.claim(unit("u"))
    waiting = asyncio.create_task(anext(_outcome(record)))
    records.leave(["u"])
    with pytest.raises(Stopping):
        await waiting
    with pytest.raises(UnknownId):
        records.find("u")
    assert (records.running(), records.finished(), records.knows("u")) == ([], [], False)


def test_units_behind_the_stop_are_left_behind():
    commands: Commands = queue.SimpleQueue()
    for entry in (Job(unit("a"), b""), Stop(), Job(unit("b"), b""), Stop(), Job(unit("c"), b"")):
        commands.put(entry)
    assert isinstance(commands.get(), Job)
    assert isinstance(commands.get(), Stop)
    assert left_behind(commands) == ["b", "c"]
    assert commands.empty()


def test_record_with_an_artifact_on_its_way_is_kept():
    records = UnitRecords(kept_outcomes=0)
    records.claim(unit("s"))
    records.finish("s", pb.UnitOutcome(artifact_pending=True), b"")
    records.acknowledge(["s"])
    settle(records, "u")
    assert records.find("s").acknowledged
    records.publish("s", pb.ArtifactOutcome(version_directory="v"))
    with pytest.raises(Gone):
        records.find("s")


def test_unacknowledged_outcomes_are_never_dropped_but_bounded(monkeypatch):
    monkeypatch.setattr(module, "OPEN_BYTES", 10)
    records = UnitRecords(kept_outcomes=0)
    records.claim(unit("u"))
    records.finish("u", pb.UnitOutcome(payload_bytes=10), b"x" * 10)
    with pytest.raises(Unavailable, match="Acknowledge"):
        records.claim(unit("v"))
    assert records.find("u").payload == b"x" * 10
    records.acknowledge(["u"])
    records.claim(unit("v"))


def test_acknowledging_a_running_unit_does_nothing():
    records = UnitRecords()
    records.claim(unit("u"))
    records.acknowledge(["u", "never"])
    assert records.running() == ["u"]
    records.finish("u", pb.UnitOutcome(), b"")
    assert records.finished() == ["u"]
    with pytest.raises(ContractViolation):
        records.finish("u", pb.UnitOutcome(), b"")
    with pytest.raises(UnknownId):
        records.find("never")


def test_fence_rises_and_never_falls_MESH_02():
    fence = Fence("me")
    fence.pass_through(3, "me", "Execute")
    fence.pass_through(3, "me", "Execute")
    for term, incarnation in ((2, "me"), (4, "other")):
        with pytest.raises(StaleFence):
            fence.pass_through(term, incarnation, "Execute", "u1")
    assert fence.term == 3
