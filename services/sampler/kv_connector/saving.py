"""When a prompt's cache blocks may be saved: only what this step's end has surely written.

Positions are global: they count from the prompt's first token, whoever computed or loaded it, so nothing
is added for blocks that came from elsewhere. What is written follows from the scheduler's own step alone;
a count kept here would be wrong after a preemption.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepView:
    """One request in one step of the engine's scheduler."""

    computed: int
    """Positions whose keys and values are there when the step begins, or are loaded before its forward."""
    scheduled: int
    """Positions the step's forward computes."""
    allocated: int
    """Blocks the request holds."""
    hashed: int
    """Full blocks whose hash is known."""

    @property
    def written(self) -> int:
        """Positions that are there when the step has run."""
        return self.computed + self.scheduled


@dataclass(frozen=True, slots=True)
class Due:
    """What is saved with a step: full blocks first … last - 1, and the tail or not."""

    first: int
    last: int
    tail: bool


@dataclass(slots=True)
class SaveProgress:
    """How far one prompt of `prompt` tokens is saved, in blocks of `block_size` tokens."""

    prompt: int
    block_size: int
    next_block: int = 0
    tail_saved: bool = False

    @property
    def full_blocks(self) -> int:
        return self.prompt // self.block_size

    @property
    def tail_tokens(self) -> int:
        """Tokens of the prompt's last, partial block; 0 = it ends with a full one, and has no tail."""
        return self.prompt % self.block_size

    def advance(self, step: StepView) -> Due:
        """What `step` makes due; it counts as saved from then on. What is not due yet stays for a later step."""
        last = min(step.written // self.block_size, self.full_blocks, step.hashed, step.allocated)
        due = Due(self.next_block, max(last, self.next_block), self._tail_is_due(step))
        self.next_block = due.last
        self.tail_saved |= due.tail
        return due

    def _tail_is_due(self, step: StepView) -> bool:
        if self.tail_saved or not self.tail_tokens:
            return False
        # Its key hangs on the hash of the last full block, its bytes on a page of its own.
        known = step.hashed >= self.full_blocks and step.allocated > self.full_blocks
        return known and step.written >= self.prompt
