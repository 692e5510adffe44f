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
    """What is placed: adapter "" = base; starts of its prompt; affinity "" = none; reserved as router.Ask's."""

    adapter: str
    sequences: int
    starts: Starts
    affinity: str = ""
    reserved: bool = False


class Router:
    def __init__(self) -> None:
        self._prefixes = PrefixIndex()

    def choose(self, pool: str, request: Request, links: Sequence[SamplerLink]) -> Spot | None:
        """A pair that has room, else a sampler of both roles that has; None = nobody has room now."""
        cached = self._prefixes.cached(request.adapter, request.starts)
        ask = Ask(request.adapter, request.sequences, cached, request.affinity, request.reserved)
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


def absence(links: Sequence[SamplerLink]) -> str:
    """Why none of them, and no two of them, take a request now though they had room; "" when some do."""
    usable = [link for link in links if link.usable]
    if whole(usable) or pairs(usable):
        return ""
    unpaired = problems(links)
    why = {link.sampler_id: unpaired.get(link.sampler_id, "") or _unusable(link) for link in links}
    return "; ".join(f"{name}: {text}" for name, text in sorted(why.items()) if text) or "there is none"


def _unusable(link: SamplerLink) -> str:
    return "" if link.usable else "drained" if link.draining else "away"


def check_complete(pool: str, links: Sequence[SamplerLink]) -> None:
    """Raises Unavailable where waiting for room or for one that is away cannot help, naming what is in the way."""
    if not whole(links) and not pairs(links):
        raise Unavailable(f"stage 'place': pool {pool} has no live sampler that is ready ({absence(links)})")
