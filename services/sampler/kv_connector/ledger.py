"""Prefill legs that wait for their blocks: each is done when all of its keys are in the catalog, or fails at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from services.common.errors import TinkermeshError


@dataclass(slots=True)
class Wait:
    keys: set[str]
    done: Future[None] = field(default_factory=Future)


class SaveLedger:
    """Used by the event loop, the engine's thread and the writer's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[str, Wait] = {}

    def expect(self, sequence_id: str, keys: Iterable[str]) -> Future[None]:
        """Done when `published` has named all `keys` for the sequence; told before the engine has it."""
        wait = Wait(set(keys))
        with self._lock:
            self._waits[sequence_id] = wait
        return wait.done

    def forget(self, sequence_id: str) -> None:
        with self._lock:
            self._waits.pop(sequence_id, None)

    @property
    def waiting(self) -> int:
        return len(self._waits)

    def missing(self, sequence_id: str) -> list[str]:
        with self._lock:
            wait = self._waits.get(sequence_id)
            return sorted(wait.keys) if wait is not None else []

    def published(self, sequence_id: str, key: str) -> None:
        with self._lock:
            wait = self._waits.get(sequence_id)
            if wait is None:
                return
            wait.keys.discard(key)
            if not wait.keys:
                with suppress(InvalidStateError):  # its leg went away meanwhile
                    wait.done.set_result(None)

    def failed(self, sequence_id: str, cause: TinkermeshError) -> None:
        with self._lock:
            wait = self._waits.get(sequence_id)
            if wait is not None:
                with suppress(InvalidStateError):
                    wait.done.set_exception(cause)
