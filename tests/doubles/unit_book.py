"""The fence of a trainer and its memory of units: invariant 4 of the design."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import InvalidInput, StaleFence, UnknownId

Recorded = tuple[pb.UnitOutcome, bytes]


@dataclass(slots=True)
class UnitBook:
    incarnation: str
    term: int = 0
    running_unit: str = ""
    _records: dict[str, asyncio.Task[Recorded]] = field(default_factory=dict)
    _digests: dict[str, bytes] = field(default_factory=dict)
    _acknowledged: set[str] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def check(self, term: int, incarnation: str) -> None:
        """Raises the fence to `term`. Raises StaleFence."""
        if incarnation != self.incarnation:
            raise StaleFence(f"incarnation {incarnation!r} is not {self.incarnation!r}, which runs now")
        if term < self.term:
            raise StaleFence(f"term {term} is older than {self.term}")
        self.term = term

    def start(self, unit: pb.Unit, run: Callable[[], Awaitable[Recorded]]) -> asyncio.Task[Recorded]:
        """The unit's execution: a new one, or the recorded or running one of its id."""
        same = pb.Unit()
        same.CopyFrom(unit)
        same.term = 0  # another leader may repeat the unit under its own term
        digest = same.SerializeToString(deterministic=True)
        if self._digests.setdefault(unit.unit_id, digest) != digest:
            raise InvalidInput(f"unit {unit.unit_id} is known with other work")
        if unit.unit_id not in self._records:
            self._records[unit.unit_id] = asyncio.create_task(self._in_turn(unit.unit_id, run))
        return self._records[unit.unit_id]

    async def outcome(self, task: asyncio.Task[Recorded], unit_id: str) -> Recorded:
        """An acknowledged unit answers its header alone."""
        header, payload = await asyncio.shield(task)
        if unit_id not in self._acknowledged:
            return header, payload
        bare = pb.UnitOutcome()
        bare.CopyFrom(header)
        bare.payload_bytes = 0
        return bare, b""

    async def _in_turn(self, unit_id: str, run: Callable[[], Awaitable[Recorded]]) -> Recorded:
        async with self._turn:
            self.running_unit = unit_id
            try:
                return await run()
            finally:
                self.running_unit = ""

    def known(self, unit_id: str) -> bool:
        return unit_id in self._records

    def find(self, unit_id: str) -> asyncio.Task[Recorded]:
        """Raises UnknownId."""
        if unit_id not in self._records:
            raise UnknownId(f"unit {unit_id} was never seen by this incarnation")
        return self._records[unit_id]

    def finished(self) -> list[str]:
        return [unit for unit, task in self._records.items() if task.done() and unit not in self._acknowledged]

    def running(self) -> list[str]:
        return [unit for unit, task in self._records.items() if not task.done()]

    def acknowledge(self, unit_ids: list[str]) -> None:
        """Payloads may go, records stay as long as the incarnation."""
        self._acknowledged.update(unit_id for unit_id in unit_ids if unit_id in self._records)
