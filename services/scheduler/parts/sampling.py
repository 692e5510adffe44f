"""The sampling path put together: sessions, admission, dispatch to the fleet, cancellation."""

from __future__ import annotations

from functools import cached_property

from services.scheduler.parts.ground import Ground, ms
from services.scheduler.pool_metrics import PoolMetrics
from services.scheduler.ports import LeaderTask
from services.scheduler.result_files import ResultMover
from services.scheduler.sampling.admission import SampleAdmission
from services.scheduler.sampling.cancel import Cancellation
from services.scheduler.sampling.completions import Completions
from services.scheduler.sampling.dispatcher import SampleDispatcher
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.generation import Generations
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.placing import Placements
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.routing import Router
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.sampling.snapshots import Snapshots
from services.scheduler.store.completions import CompletionStore
from services.scheduler.store.large_results import LargeResults
from services.scheduler.store.pool_state import PoolStateReader
from services.scheduler.sweeper import ResultSweeper


class SamplingParts:
    """Each part is made once, at its first use."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    @cached_property
    def limits(self) -> SamplingLimits:
        settings = self._ground.settings
        return SamplingLimits(
            sample_seconds=settings.sample_seconds,
            sampler_wait_seconds=settings.sampler_wait_seconds,
            first_token_seconds=settings.first_token_seconds,
            next_token_seconds=settings.next_token_seconds,
            retention_ms=self._ground.retention_ms,
            fair=settings.fair,
        )

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(self._ground.directory, load_seconds=self._ground.settings.adapter_load_seconds)

    @cached_property
    def generations(self) -> Generations:
        return Placements(self.fleet, self.limits, self.router)

    @cached_property
    def router(self) -> Router:
        return Router()

    @cached_property
    def presence(self) -> SamplerPresence:
        return SamplerPresence(self._ground.directory, expected=self._ground.settings.samplers)

    @cached_property
    def sessions(self) -> SamplingSessions:
        ground = self._ground
        stores = ground.sampling_store, ground.session_store
        return SamplingSessions(*stores, ground.artifacts, ground.directory, self.presence)

    @cached_property
    def snapshots(self) -> Snapshots:
        return Snapshots(self.sessions, self._ground.directory, self.fleet)

    @cached_property
    def admission(self) -> SampleAdmission:
        return SampleAdmission(self._ground.sampling_store, self.presence, self.limits, self._ground.book.quotas)

    @cached_property
    def completions(self) -> Completions:
        store = CompletionStore(self._ground.functions)
        return Completions(store, retrieved_grace_ms=ms(self._ground.settings.retrieved_grace_seconds))

    @cached_property
    def cancellation(self) -> Cancellation:
        return Cancellation(self._ground.sampling_store, self._ground.reader, self.fleet, self.limits)

    @cached_property
    def dispatcher(self) -> SampleDispatcher:
        ground = self._ground
        return SampleDispatcher(
            ground.sampling_store, self.fleet, ground.notices, self.limits, self.router, ground.book.weights
        )

    @property
    def leader_tasks(self) -> list[LeaderTask]:
        store, ground = self._ground.sampling_store, self._ground
        return [
            self.dispatcher,
            ResultSweeper(store, ground.sequences, keep_ms=self.limits.retention_ms),
            ResultMover(LargeResults(ground.redis, ground.functions), ground.results, ground.blobs),
            PoolMetrics(
                PoolStateReader(ground.redis, ground.book.class_of),
                ground.registry_store,
                valid_ms=ms(ground.settings.registration_seconds),
                samplers=ground.settings.samplers,
            ),
        ]
