"""FAIL-01 as a table."""

from __future__ import annotations

import pytest

from services.scheduler.core.failure import Reach, of_datum, of_slot, of_unit
from services.scheduler.core.view import Op

CLOSING = (Op.FORWARD_BACKWARD, Op.OPTIM_STEP)


@pytest.mark.parametrize("op", [op for op in Op if op is not Op.SAMPLE])
def test_a_lone_failed_unit_closes_the_model_only_where_gradients_are_at_stake_FAIL_01(op: Op) -> None:
    assert of_unit(op, violation=False) is (Reach.MODEL if op in CLOSING else Reach.REQUEST)


@pytest.mark.parametrize("op", [Op.FORWARD_BACKWARD, Op.OPTIM_STEP, Op.LOAD_WEIGHTS])
def test_effects_that_are_unknown_close_the_model_FAIL_01(op: Op) -> None:
    assert of_unit(op, violation=True) is Reach.MODEL
    assert of_unit(Op.FORWARD, violation=True) is Reach.REQUEST


def test_a_datums_own_fault_stays_with_its_request() -> None:
    assert of_datum(Op.FORWARD_BACKWARD, user=True) is Reach.REQUEST
    assert of_datum(Op.FORWARD_BACKWARD, user=False) is Reach.MODEL
    assert of_datum(Op.FORWARD, user=False) is Reach.REQUEST


def test_a_load_closes_its_model_only_after_it_began_to_assign_FAIL_01() -> None:
    assert of_slot(Op.LOAD_WEIGHTS, assignment_began=False) is Reach.REQUEST
    assert of_slot(Op.LOAD_WEIGHTS, assignment_began=True) is Reach.MODEL
    assert of_slot(Op.OPTIM_STEP, assignment_began=False) is Reach.MODEL
    assert of_slot(Op.SAVE_WEIGHTS, assignment_began=False) is Reach.REQUEST
