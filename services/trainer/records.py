"""The trainer's memory of units: each takes effect once however often it is sent.

A record lives from acceptance on. Acknowledgement drops its payload; of the acknowledged ones
only the newest keep their outcome and, beyond them, their id, so memory stays bounded.
Everything here belongs to the server's event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import ContractViolation, Gone, InvalidInput, Unavailable, UnknownId

KEPT_OUTCOMES = 1024
KEPT_IDS = 65_536
OPEN_UNITS = 256
OPEN_BYTES = 1 << 30


@dataclass(slots=True)
class UnitRecord:
    unit_id: str
    digest: bytes
    done: asyncio.Event = field(default_factory=asyncio.Event)
    published: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: pb.UnitOutcome = field(default_factory=pb.UnitOutcome)
    payload: bytes = b""
    artifact: pb.ArtifactOutcome = field(default_factory=pb.ArtifactOutcome)
    acknowledged: bool = False
    left: bool = False  # accepted, and not run in this life

    @property
    def settled(self) -> bool:
        """Nothing will change it any more."""
        return self.done.is_set() and (self.published.is_set() or not self.outcome.artifact_pending)


def unit_digest(unit: pb.Unit) -> bytes:
    """Equal for repeats of a unit, whichever term sends them."""
    same = pb.Unit()
    same.CopyFrom(unit)
    same.term = 0
    return hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).digest()


class UnitRecords:
    def __init__(self, *, kept_outcomes: int = KEPT_OUTCOMES, kept_ids: int = KEPT_IDS) -> None:
        self._records: dict[str, UnitRecord] = {}
        self._acknowledged: OrderedDict[str, None] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._kept_outcomes = kept_outcomes
        self._kept_ids = kept_ids
        self._open_bytes = 0

    def claim(self, unit: pb.Unit) -> tuple[UnitRecord, bool]:
        """The unit's record, and whether this call made it (and must run it).

        Raises InvalidInput when the id is known with other work, Gone when its outcome was
        dropped after acknowledgement, Unavailable when too many outcomes wait for one.
        """
        digest = unit_digest(unit)
        if unit.unit_id in self._forgotten:
            raise Gone(f"unit {unit.unit_id} was settled long ago; it is not run again")
        if (known := self._records.get(unit.unit_id)) is not None:
            if known.digest != digest:
                raise InvalidInput(f"unit_id {unit.unit_id} is known with other work")
            return known, False
        if len(self._records) - len(self._acknowledged) >= OPEN_UNITS or self._open_bytes >= OPEN_BYTES:
            raise Unavailable("too many finished units wait for Acknowledge; acknowledge them, then send again")
        record = UnitRecord(unit.unit_id, digest)
        self._records[unit.unit_id] = record
        return record, True

    def knows(self, unit_id: str) -> bool:
        return unit_id in self._records or unit_id in self._forgotten

    def find(self, unit_id: str) -> UnitRecord:
        """Raises UnknownId when this incarnation never saw the unit, Gone when it was dropped."""
        if unit_id in self._forgotten:
            raise Gone(f"unit {unit_id} was settled long ago")
        if unit_id not in self._records:
            raise UnknownId(f"unit {unit_id[:100]} was never seen by this incarnation")
        return self._records[unit_id]

    def finish(self, unit_id: str, outcome: pb.UnitOutcome, payload: bytes) -> None:
        record = self._records[unit_id]
        if record.done.is_set():
            raise ContractViolation(f"unit {unit_id} finished twice")
        record.outcome, record.payload = outcome, payload
        self._open_bytes += len(payload)
        record.done.set()
        self._trim()

    def leave(self, unit_ids: Iterable[str]) -> None:
        """Accepted units that this life does not come to: whoever waits hears of it, and nobody finds them."""
        for unit_id in unit_ids:
            record = self._records.pop(unit_id)
            record.left = True
            record.done.set()

    def publish(self, unit_id: str, artifact: pb.ArtifactOutcome) -> None:
        record = self._records[unit_id]
        record.artifact = artifact
        record.published.set()
        self._trim()

    def acknowledge(self, unit_ids: Iterable[str]) -> None:
        for unit_id in unit_ids:
            record = self._records.get(unit_id)
            if record is None or record.acknowledged or not record.done.is_set():
                continue
            self._open_bytes -= len(record.payload)
            record.acknowledged, record.payload = True, b""
            record.outcome = _without_payload(record.outcome)
            self._acknowledged[unit_id] = None
        self._trim()

    def finished(self) -> list[str]:
        """Recorded and not yet acknowledged."""
        return [r.unit_id for r in self._records.values() if r.done.is_set() and not r.acknowledged]

    def running(self) -> list[str]:
        """Accepted and not yet finished, queued ones included."""
        return [r.unit_id for r in self._records.values() if not r.done.is_set()]

    def _trim(self) -> None:
        while len(self._acknowledged) > self._kept_outcomes:
            oldest = next(iter(self._acknowledged))
            if not self._records[oldest].settled:
                break  # its artifact is still on the way; everything after it waits too
            del self._acknowledged[oldest], self._records[oldest]
            self._forgotten[oldest] = None
        while len(self._forgotten) > self._kept_ids:
            self._forgotten.popitem(last=False)


def _without_payload(outcome: pb.UnitOutcome) -> pb.UnitOutcome:
    """A copy: the original may be on its way to somebody."""
    header = pb.UnitOutcome()
    header.CopyFrom(outcome)
    header.payload_bytes = 0
    return header
