"""The fence at the resource: who may still change this trainer's state."""

from __future__ import annotations

from services.common.errors import StaleFence


class Fence:
    """One life of a trainer (`incarnation`) and the highest scheduler term it has seen."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.term = 0

    def pass_through(self, term: int, incarnation: str) -> None:
        """Admits the call and raises the fence to its term. Raises StaleFence."""
        if incarnation != self.incarnation:
            raise StaleFence(f"incarnation {incarnation[:64]!r} is over; {self.incarnation!r} runs now")
        if term < self.term:
            raise StaleFence(f"term {term} is older than {self.term}, under which this trainer is driven now")
        self.term = term
