"""Which trainers of a pool a model may go to."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.scheduler.dispatch.placement import placeable, serving
from services.scheduler.ports import CellTrainer

TRAINER = pb.RegisterTrainerRequest(trainer_id="t")
SERVES, DRAINED, AWAY = CellTrainer(TRAINER), CellTrainer(None, TRAINER), CellTrainer()


def test_a_new_model_goes_to_a_trainer_that_serves_if_there_is_one() -> None:
    assert placeable({"1": AWAY, "2": SERVES, "0": SERVES, "3": DRAINED}) == ("0", "2")
    assert serving({"1": AWAY, "2": SERVES, "0": SERVES}, but="0") == ("2",)


def test_while_none_serves_it_waits_for_one_that_may_come_back_rather_than_for_a_drained_one() -> None:
    assert placeable({"1": AWAY, "0": DRAINED, "2": AWAY}) == ("1", "2")
    assert placeable({"0": DRAINED}) == placeable({}) == ()


def test_a_trainer_that_serves_is_driven_rather_than_a_drained_one_of_its_cell() -> None:
    other = pb.RegisterTrainerRequest(trainer_id="u")
    assert CellTrainer(TRAINER, other).any == TRAINER
    assert DRAINED.any == TRAINER
    assert AWAY.any is None
