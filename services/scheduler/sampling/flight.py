"""What a sample takes of its samplers' room."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from services.scheduler.sampling.link import SamplerLink
from services.scheduler.sampling.pairing import DECODE, partners
from services.scheduler.sampling.spot import Spot


class Flight:
    """Counted from its making on, and given back once: also when the sample's task never began to run."""

    def __init__(self, spot: Spot, sequences: int) -> None:
        self._held = ExitStack()
        self.spot = spot
        self._seats = self._held.enter_context(spot.taking(sequences))

    @property
    def link(self) -> SamplerLink:
        return self.spot.link

    def leave_prefill(self) -> None:
        self._seats.leave_prefill()

    def land(self) -> None:
        self._held.close()


def spot_of(sampler_id: str, links: Sequence[SamplerLink]) -> Spot | None:
    """Where a sample that an earlier lease holder sent to `sampler_id` goes on; None = it must be sent anew."""
    link = next((link for link in links if link.sampler_id == sampler_id), None)
    if link is None or link.role != DECODE:
        return None if link is None else Spot(link)
    first = next((one for one in links if link in partners(one, [link])), None)
    return None if first is None else Spot(link, first)
