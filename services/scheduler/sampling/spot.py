"""Where something is generated: one sampler for all of it, or one for each leg."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from services.scheduler.sampling.link import SamplerLink


@dataclass(frozen=True, slots=True)
class Spot:
    """`link` generates; with `prefill` that one computes the prompt and the first token before."""

    link: SamplerLink
    prefill: SamplerLink | None = None

    @property
    def links(self) -> tuple[SamplerLink, ...]:
        """In the order in which they work."""
        return (self.link,) if self.prefill is None else (self.prefill, self.link)

    @property
    def prompt_link(self) -> SamplerLink:
        """Takes requests about the prompt as a whole: a decode sampler computes none."""
        return self.prefill or self.link

    @property
    def sampler_ids(self) -> tuple[str, ...]:
        return tuple(link.sampler_id for link in self.links)

    @contextmanager
    def taking(self, sequences: int) -> Iterator[Seats]:
        """Counts them on all its samplers inside the block, on the prefill sampler until its leg is over."""
        with ExitStack() as held, ExitStack() as prefill:
            held.enter_context(self.link.load_now.taking(sequences))
            if self.prefill is not None:
                prefill.enter_context(self.prefill.load_now.taking(sequences))
            yield Seats(prefill)


@dataclass(frozen=True, slots=True)
class Seats:
    _prefill: ExitStack

    def leave_prefill(self) -> None:
        """Its leg is over; may be said again."""
        self._prefill.close()
