"""One replica's router: the pure choice, what it remembers of earlier ones, and the count of its reasons."""

from __future__ import annotations

from collections.abc import Iterable

from services.scheduler import metrics
from services.scheduler.core.prefixes import PrefixIndex, Starts
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.router import Ask, choose


class Router:
    def __init__(self) -> None:
        self._prefixes = PrefixIndex()

    def choose(
        self, pool: str, adapter: str, sequences: int, starts: Starts, links: Iterable[SamplerLink], affinity: str = ""
    ) -> SamplerLink | None:
        """None = nobody has room now."""
        choice = choose(Ask(adapter, sequences, self._prefixes.cached(adapter, starts), affinity), links)
        if choice is None:
            return None
        self._prefixes.sent(adapter, starts, choice.sampler.incarnation)
        metrics.placements.labels(pool, choice.reason).inc()
        return choice.sampler
