"""What the scheduler's half tells the worker's half for one step."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BlockMove:
    """One block between the engine's memory and the tier."""

    sequence_id: str
    key: str
    block_id: int


@dataclass(slots=True)
class StepMoves:
    loads: list[BlockMove] = field(default_factory=list)
    """Before the step's forward."""
    saves: list[BlockMove] = field(default_factory=list)
    """After it."""
