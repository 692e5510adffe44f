"""A forward_backward request between its encoding and its canonical form.

Both encodings (protobuf and JSON) end in a RawBatch; everything after it cannot tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.gateway.settings import Limits
from services.gateway.wire.provenance import Provenance
from services.gateway.wire.tensors import Room, Tensor


class RawDatum(NamedTuple):
    """tokens: int32 little-endian bytes of all text chunks, in order; provenance: where a loss reads it."""

    tokens: bytes
    inputs: dict[str, Tensor]
    provenance: Provenance | None = None

    @property
    def length(self) -> int:
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True)
class RawLoss:
    """The loss as asked for: the v2 map has already replaced the legacy one."""

    name: str
    config: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawBatch:
    backward: bool
    loss: RawLoss
    datums: list[RawDatum]


def sparse_room(limits: Limits) -> Room:
    """Targets and weights of a whole request may be sparse: two values for each of its targets."""
    return Room(2 * limits.max_targets_per_request)
