"""How busy a sampler is: what this replica has there, and what others have, as the sampler told last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_SECONDS = 1.0
BELIEVED_SECONDS = 5.0


class LinkLoad:
    """Sequences. Interactive streams are placed by every replica, so the own ones are not all there are."""

    def __init__(self, freed: asyncio.Event | None = None) -> None:
        """`freed` is set whenever somebody leaves."""
        self._freed = freed or asyncio.Event()
        self.in_flight = 0
        self._elsewhere = 0
        self._told_at = self._asked_at = float("-inf")

    @property
    def total(self) -> int:
        known = _now() - self._told_at <= BELIEVED_SECONDS
        return self.in_flight + (self._elsewhere if known else 0)

    @contextmanager
    def taking(self, sequences: int) -> Iterator[None]:
        """Counts them inside the block."""
        self.in_flight += sequences
        try:
            yield
        finally:
            self.give_back(sequences)

    def give_back(self, sequences: int) -> None:
        self.in_flight -= sequences
        self._freed.set()

    def due(self) -> bool:
        """Whether the sampler is to be asked now; the one who is told so asks."""
        if _now() - self._asked_at < LOOK_SECONDS:
            return False
        self._asked_at = _now()
        return True

    def told(self, sequences: int, own_before: int) -> None:
        """The sampler has `sequences` in all; `own_before`: those of this replica when it was asked.

        The larger count of its own ones is taken off: what ended meanwhile is not somebody else's.
        """
        self._elsewhere = max(0, sequences - max(own_before, self.in_flight))
        self._told_at = _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
