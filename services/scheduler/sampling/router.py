"""Which sampler takes a sample, and why: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, Literal, Protocol, TypeVar

Reason = Literal["resident", "prefix", "sticky", "load"]

SLACK = 0.25
"""Of its capacity: so much busier than the least busy one may be who is preferred for what it has cached."""


class Candidate(Protocol):
    """A live sampler as the router sees it."""

    @property
    def sampler_id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def usable(self) -> bool:
        """False while it is suspected to be dead."""
        ...

    @property
    def capacity(self) -> int:
        """Sequences it may have in flight."""
        ...

    @property
    def reserve(self) -> int:
        """Sequences beyond its capacity that only a reserved request may use."""
        ...

    @property
    def in_flight(self) -> int: ...

    @property
    def resident(self) -> Collection[str]:
        """Names of the adapters it holds."""
        ...


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be placed. adapter "" = base, resident everywhere.

    cached: incarnation -> share of the prompt (0 .. 1] it probably has in its cache.
    affinity: requests with one key prefer one sampler, the same at every replica.
    reserved: it may go beyond the capacity by the reserve, so that those who fill samplers to it never shut it out.
    """

    adapter: str
    sequences: int
    cached: Mapping[str, float] = field(default_factory=dict)
    affinity: str = ""
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Choice(Generic[C]):
    sampler: C
    reason: Reason


def choose(ask: Ask, candidates: Iterable[C]) -> Choice[C] | None:
    """Among those with room: where the adapter is resident, there where the prompt is cached or the affinity
    points while that is not much busier than the least busy one, else the least busy one.

    None = nobody has room now. A sample larger than the capacity fits an idle sampler.
    """
    fitting = [candidate for candidate in candidates if candidate.usable and _fits(candidate, ask)]
    holding = [candidate for candidate in fitting if not ask.adapter or ask.adapter in candidate.resident]
    among = sorted(holding or fitting, key=_rank)
    if not among:
        return None
    liked = _preferred(ask, [candidate for candidate in among if _load(candidate) <= _load(among[0]) + SLACK])
    if liked is not None:
        return liked
    return Choice(among[0], "resident" if holding and len(holding) < len(fitting) else "load")


def _preferred(ask: Ask, balanced: list[C]) -> Choice[C] | None:
    """A conversation that goes on (most of its prompt is cached) stays; then its key decides; then any cached start."""
    cached = max(balanced, key=lambda candidate: ask.cached.get(candidate.incarnation, 0.0))
    share = ask.cached.get(cached.incarnation, 0.0)
    if share >= 0.5 or (share and not ask.affinity):
        return Choice(cached, "prefix")
    if ask.affinity:
        return Choice(max(balanced, key=lambda candidate: _weight(ask.affinity, candidate.sampler_id)), "sticky")
    return None


def _weight(affinity: str, sampler_id: str) -> bytes:
    """Rendezvous hashing: every replica prefers the same one, and a sampler that leaves moves only its own keys."""
    return blake2b(f"{affinity}\0{sampler_id}".encode(), digest_size=8).digest()


def _fits(candidate: Candidate, ask: Ask) -> bool:
    """A reserved request of many sequences begins as soon as the reserve is free: it may never see more."""
    if candidate.in_flight == 0 or candidate.in_flight + ask.sequences <= candidate.capacity:
        return True
    reserve = candidate.reserve if ask.reserved else 0
    return 0 < min(ask.sequences, reserve) <= candidate.capacity + reserve - candidate.in_flight


def _load(candidate: Candidate) -> float:
    return candidate.in_flight / max(candidate.capacity, 1)


def _rank(candidate: Candidate) -> tuple[float, str]:
    return _load(candidate), candidate.sampler_id
