"""The fence at the resource: who may still change this trainer's state."""

from __future__ import annotations

import logging

from services.common.errors import StaleFence

log = logging.getLogger(__name__)


class Fence:
    """One life of a trainer (`incarnation`) and the highest scheduler term it has seen."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.term = 0

    def pass_through(self, term: int, incarnation: str, what: str, unit_id: str = "") -> None:
        """Admits the call `what` and raises the fence to its term. Raises StaleFence, which it logs."""
        if incarnation != self.incarnation:
            problem = f"incarnation {incarnation[:64]!r} is over; {self.incarnation!r} runs now"
        elif term < self.term:
            problem = f"term {term} is older than {self.term}, under which this trainer is driven now"
        else:
            self.term = term
            return
        refused(what, problem, term=term, incarnation=incarnation[:64], unit_id=unit_id[:64])
        raise StaleFence(problem)


def refused(what: str, problem: str, *, term: int, incarnation: str, unit_id: str = "") -> None:
    """The one line that tells of an effect that came too late."""
    fields = {"refused": what, "term": term, "incarnation": incarnation, "unit_id": unit_id}
    log.warning("refused: %s: %s", what, problem, extra={"fields": fields})
