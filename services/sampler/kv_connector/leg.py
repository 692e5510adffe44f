"""What the connector is told about a request: which part of a sample it is, and the name its caller knows it by.

Travels with the request as vLLM's `kv_transfer_params`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple


class Part(Enum):
    PREFILL = "prefill"
    """Its prompt's blocks are saved, the tail too: the other leg's prompt ends with this one's token."""
    DECODE = "decode"
    """All of its prompt but the last token comes from the tier."""


class Leg(NamedTuple):
    part: Part
    sequence_id: str

    def params(self) -> dict[str, str]:
        return {"part": self.part.value, "sequence_id": self.sequence_id}


def leg_of(params: Mapping[str, Any] | None) -> Leg | None:
    """None for a request that neither saves nor loads."""
    if not params or "part" not in params:
        return None
    return Leg(Part(params["part"]), str(params["sequence_id"]))
