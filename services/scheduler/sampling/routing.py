"""One replica's router: the pure choice, what it remembers of earlier ones, and the count of its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.common.errors import Unavailable
from services.scheduler import metrics
from services.scheduler.core.prefixes import PrefixIndex, Starts
from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.pairing import pairs, partners, problems, whole
from services.scheduler.sampling.router import Ask, Choice, choose
from services.scheduler.sampling.spot import Spot


class Request(NamedTuple):
    """What is placed: adapter "" = base; starts of its prompt; affinity "" = none."""

    adapter: str
    sequences: int
    starts: Starts
    affinity: str = ""


class Router:
    def __init__(self) -> None:
        self._prefixes = PrefixIndex()

    def choose(self, pool: str, request: Request, links: Sequence[SamplerLink]) -> Spot | None:
        """A pair that has room, else a sampler of both roles that has; None = nobody has room now."""
        cached = self._prefixes.cached(request.adapter, request.starts)
        ask = Ask(request.adapter, request.sequences, cached, request.affinity)
        decoders = {decoder.incarnation: decoder for _, decoder in pairs(links)}
        rest = choose(ask, decoders.values())
        if rest is not None:
            first = choose(ask, [link for link in links if rest.sampler in partners(link, links)])
            if first is not None:
                return self._taken(pool, request, first, Spot(rest.sampler, first.sampler))
        alone = choose(ask, whole(links))
        return None if alone is None else self._taken(pool, request, alone, Spot(alone.sampler))

    def _taken(self, pool: str, request: Request, choice: Choice[SamplerLink], spot: Spot) -> Spot:
        self._prefixes.sent(request.adapter, request.starts, choice.sampler.incarnation)
        metrics.placements.labels(pool, choice.reason).inc()
        return spot


def check_complete(pool: str, links: Sequence[SamplerLink]) -> None:
    """Raises Unavailable where no sampler, and no two of them, could ever take a request, naming what is in the way."""
    if whole(links) or pairs(links):
        return
    why = "; ".join(f"{name}: {text}" for name, text in sorted(problems(links).items()))
    raise Unavailable(f"stage 'place': pool {pool} has no live sampler" + (f" that is ready ({why})" if why else ""))
