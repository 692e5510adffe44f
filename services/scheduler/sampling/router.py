"""Which sampler takes a sample: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A live sampler as the router sees it."""

    @property
    def sampler_id(self) -> str: ...

    @property
    def usable(self) -> bool:
        """False while it is suspected to be dead."""
        ...

    @property
    def capacity(self) -> int:
        """Sequences it may have in flight."""
        ...

    @property
    def in_flight(self) -> int: ...

    @property
    def resident(self) -> Collection[str]:
        """Names of the adapters it holds."""
        ...


C = TypeVar("C", bound=Candidate)


def choose(adapter: str, sequences: int, candidates: Iterable[C]) -> C | None:
    """Among those with room: where `adapter` is resident ("" = base, resident everywhere), then the
    least loaded. None = nobody has room now. A sample larger than the capacity fits an idle sampler."""
    fitting = [candidate for candidate in candidates if candidate.usable and _fits(candidate, sequences)]
    return min(fitting, key=lambda candidate: _rank(adapter, candidate), default=None)


def _fits(candidate: Candidate, sequences: int) -> bool:
    return candidate.in_flight == 0 or candidate.in_flight + sequences <= candidate.capacity


def _rank(adapter: str, candidate: Candidate) -> tuple[bool, float, str]:
    missing = adapter != "" and adapter not in candidate.resident
    return missing, candidate.in_flight / max(candidate.capacity, 1), candidate.sampler_id
