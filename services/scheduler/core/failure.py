"""How far a failure reaches (FAIL-01): one request, or its model."""

from __future__ import annotations

from enum import StrEnum

from services.scheduler.core.view import Op


class Reach(StrEnum):
    REQUEST = "request"  # only this future fails
    MODEL = "model"  # the model closes: what its slot holds is no longer what the client believes


def of_unit(op: Op, *, violation: bool) -> Reach:
    """A unit of one request failed as a whole. `violation`: its effects are unknown."""
    if violation:
        return Reach.MODEL if changes_slot(op) else Reach.REQUEST
    return Reach.MODEL if op in (Op.FORWARD_BACKWARD, Op.OPTIM_STEP) else Reach.REQUEST


def of_datum(op: Op, *, user: bool) -> Reach:
    """One datum failed in a pass that went on: its own content (user) or something about its slot."""
    return Reach.MODEL if op is Op.FORWARD_BACKWARD and not user else Reach.REQUEST


def of_slot(op: Op, *, assignment_began: bool) -> Reach:
    """One slot's entry failed: a step always closes its model, a load only once it began to assign."""
    if op is Op.OPTIM_STEP or (op is Op.LOAD_WEIGHTS and assignment_began):
        return Reach.MODEL
    return Reach.REQUEST


def changes_slot(op: Op) -> bool:
    return op in (Op.FORWARD_BACKWARD, Op.OPTIM_STEP, Op.LOAD_WEIGHTS)
