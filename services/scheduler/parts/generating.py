"""The Completions service put together."""

from __future__ import annotations

from functools import cached_property

from services.scheduler.front import Front
from services.scheduler.generating.desk import LEASE_SECONDS, GenerationDesk
from services.scheduler.generating.pieces import PieceSource, TokenPieces
from services.scheduler.generating.run import Parts, Times
from services.scheduler.generating.server import Completions
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.pools import Pools
from services.scheduler.sampling.generation import Generations
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.targets import Targets
from services.scheduler.store.generations import GenerationStore


class GeneratingParts:
    """Each part is made once, at its first use."""

    def __init__(
        self, ground: Ground, generations: Generations, pieces: PieceSource, presence: SamplerPresence
    ) -> None:
        self._ground = ground
        self._generations = generations
        self._pieces = pieces
        self._presence = presence

    @cached_property
    def desk(self) -> GenerationDesk:
        store = GenerationStore(self._ground.functions, lease_ms=ms(LEASE_SECONDS))
        return GenerationDesk(store, self._ground.book.quotas)

    def service(self, front: Front) -> Completions:
        ground, settings = self._ground, self._ground.settings
        times = Times(place=settings.completion_wait_seconds, stream=settings.sample_seconds)
        return Completions(
            parts=Parts(self._generations, self.desk, TokenPieces(self._pieces), times),
            targets=Targets(ground.artifacts, Pools(ground.directory)),
            artifacts=ground.artifacts,
            directory=ground.directory,
            presence=self._presence,
            front=front,
        )
