"""Blocks that were fetched for decode legs and wait for the engine, in memory: each once, however many want it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(slots=True)
class Staged:
    payload: memoryview
    users: set[str] = field(default_factory=set)


class Staging:
    """Used by fetching threads and the engine's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[str, Staged] = {}
        self._open: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes."""
        with self._lock:
            return sum(len(staged.payload) for staged in self._blocks.values())

    def open(self, sequence_id: str) -> None:
        """Blocks are kept for the sequence from now on, until it is released."""
        with self._lock:
            self._open.add(sequence_id)

    def join(self, sequence_id: str, key: str) -> bool:
        """Whether the block is here already; then it stays until the sequence is done with it."""
        with self._lock:
            staged = self._blocks.get(key)
            if staged is not None and sequence_id in self._open:
                staged.users.add(sequence_id)
            return staged is not None

    def put(self, sequence_id: str, key: str, payload: memoryview) -> None:
        """Nothing, where the sequence was released meanwhile: a fetch outlives the leg that went away."""
        with self._lock:
            if sequence_id not in self._open:
                return
            self._blocks.setdefault(key, Staged(payload)).users.add(sequence_id)

    def get(self, key: str) -> memoryview | None:
        with self._lock:
            staged = self._blocks.get(key)
            return staged.payload if staged is not None else None

    def release(self, sequence_id: str) -> None:
        with self._lock:
            self._open.discard(sequence_id)
            for key, staged in list(self._blocks.items()):
                staged.users.discard(sequence_id)
                if not staged.users:
                    del self._blocks[key]

    def drop(self, key: str) -> None:
        with self._lock:
            self._blocks.pop(key, None)
