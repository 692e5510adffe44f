"""Passes of the trainer double that fail as a whole when they hold what a test calls poison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import ServerError, Unavailable
from tests.contract.scheduler.rig import Mesh

Contents = list[tuple[str, int]]
"""(request id, datum index) of a pass."""


class Poison:
    """`ran` is what every pass held, failed ones included."""

    def __init__(self, fails: Callable[[Contents], bool], *, transient: int = 0) -> None:
        self.fails, self.transient = fails, transient
        self.ran: list[Contents] = []

    def look(self, work: pb.PassWork) -> None:
        """Raises ServerError, the first `transient` times Unavailable, when the pass must fail."""
        held = [(i.request_id, i.first_datum + n) for i in work.items for n in range(len(i.lengths))]
        self.ran.append(held)
        if self.fails(held):
            if len(self.ran) <= self.transient:
                raise Unavailable("memory ran out; the same again may succeed")
            raise ServerError("the pass failed as a whole")


def poisoned(mesh: Mesh, patch: pytest.MonkeyPatch, fails: Callable[[Contents], bool], *, transient: int = 0) -> Poison:
    poison = Poison(fails, transient=transient)
    effect, outcome = mesh.trainer.runner._effect, mesh.trainer.runner._outcome

    def with_poison(_self: Any, unit: pb.Unit, payload: bytes, kind: str, due: Any) -> Any:
        if kind == "pass":
            poison.look(getattr(unit, "pass"))
        return effect(unit, payload, kind, due)

    def marked(_self: Any, unit: pb.Unit, payload: bytes, kind: str, due: Any) -> Any:
        made = outcome(unit, payload, kind, due)
        made[0].failure.transient = made[0].failure.message.startswith("memory ran out")
        if not made[0].failure.message:
            made[0].ClearField("failure")
        return made

    kind = type(mesh.trainer.runner)
    patch.setattr(kind, "_effect", with_poison)
    patch.setattr(kind, "_outcome", marked)
    return poison
