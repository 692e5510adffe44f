"""One scheduler replica put together: what it serves, and what runs beside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from services.scheduler.admin import Admin
from services.scheduler.catalog.server import Catalog
from services.scheduler.catalog.sweeper import CatalogSweeper
from services.scheduler.console.server import Console
from services.scheduler.deliveries import Deliveries
from services.scheduler.directory import Directory
from services.scheduler.dispatch.training import Training
from services.scheduler.explanations import Explanations
from services.scheduler.front import Front
from services.scheduler.generating.desk import GenerationDesk
from services.scheduler.generating.fleet_pieces import FleetPieces
from services.scheduler.generating.server import Completions
from services.scheduler.intake import Intake
from services.scheduler.jobs.progress import JobProgress
from services.scheduler.jobs.server import Jobs
from services.scheduler.parts.catalog import CatalogParts
from services.scheduler.parts.console import make_console
from services.scheduler.parts.generating import GeneratingParts
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.parts.jobs import JobParts
from services.scheduler.parts.operators import make_admin, make_tenants
from services.scheduler.parts.sampling import SamplingParts
from services.scheduler.parts.training import make_training
from services.scheduler.pools import Pools
from services.scheduler.pressure import Pressure
from services.scheduler.queue_states import QueueStates
from services.scheduler.registry import Registry
from services.scheduler.results import Results
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.generation import Generations
from services.scheduler.server import Scheduler
from services.scheduler.sessions import Sessions
from services.scheduler.store.memory import MemoryGate
from services.scheduler.sweeper import Sweeper
from services.scheduler.tenancy.book import TenantBook
from services.scheduler.tenancy.places import SessionPlaces
from services.scheduler.tenancy.service import Tenants
from services.scheduler.watch import WatchHub


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process serves and what it runs beside."""

    scheduler: Scheduler
    completions: Completions
    generation_desk: GenerationDesk
    catalog: Catalog
    catalog_sweeper: CatalogSweeper
    console: Console
    registry: Registry
    admin: Admin
    tenants: Tenants
    book: TenantBook
    training: Training
    sweeper: Sweeper
    watches: WatchHub
    directory: Directory
    front: Front
    fleet: Fleet
    memory: MemoryGate
    deliveries: Deliveries
    jobs: Jobs
    job_progress: JobProgress


class Assembly:
    """Each part is made once, at its first use, after the parts it needs."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._sampling = SamplingParts(ground)

    def parts(self) -> Parts:
        """Raises InvalidInput when the pepper cannot be read."""
        ground = self._ground
        return Parts(
            scheduler=self.scheduler,
            completions=self.generating.service(self.front),
            generation_desk=self.generating.desk,
            catalog=self.catalog.service,
            catalog_sweeper=self.catalog.sweeper,
            console=make_console(ground, self.catalog.runs),
            registry=Registry(ground.registry_store, ground.directory),
            admin=make_admin(ground, self.results, self.queue_states, self._sampling.fleet, self.jobs.sweeper),
            tenants=make_tenants(ground),
            book=ground.book,
            training=self.training,
            sweeper=self.sweeper,
            watches=self.watches,
            directory=ground.directory,
            front=self.front,
            fleet=self._sampling.fleet,
            memory=ground.memory,
            deliveries=self.deliveries,
            jobs=self.jobs.service(self.front),
            job_progress=self.jobs.progress,
        )

    @property
    def generations(self) -> Generations:
        """How anything here reaches the samplers."""
        return self._sampling.generations

    @cached_property
    def generating(self) -> GeneratingParts:
        sampling = self._sampling
        return GeneratingParts(self._ground, self.generations, FleetPieces(sampling.fleet), sampling.presence)

    @cached_property
    def training(self) -> Training:
        return make_training(self._ground, self._sampling, self.jobs)

    @cached_property
    def jobs(self) -> JobParts:
        sampling = self._sampling
        return JobParts(self._ground, self.generations, sampling.presence, sampling.dispatcher.waiting)

    @cached_property
    def catalog(self) -> CatalogParts:
        return CatalogParts(self._ground, self.training.models)

    @cached_property
    def results(self) -> Results:
        return self._ground.results

    @cached_property
    def queue_states(self) -> QueueStates:
        return QueueStates(self.training.models, self._ground.directory, self._ground.sampling_store)

    @cached_property
    def watches(self) -> WatchHub:
        explanations = Explanations(self.results, self.queue_states)
        told = self.deliveries.note
        return WatchHub(self.results, self._sampling.completions, explanations, self._ground.notices, told)

    @cached_property
    def deliveries(self) -> Deliveries:
        return Deliveries(self._ground.reader)

    @cached_property
    def front(self) -> Front:
        return Front(lambda: self.watches.streams)

    @cached_property
    def sessions(self) -> Sessions:
        ground = self._ground
        places = SessionPlaces(ground.tenancy_store, ground.session_store, ground.book)
        models, cancellation = self.training.models, self._sampling.cancellation
        keep_ms = ground.retention_ms
        return Sessions(ground.session_store, models, cancellation, places, ground.catalog_store, keep_ms=keep_ms)

    @cached_property
    def sweeper(self) -> Sweeper:
        settings = self._ground.settings
        return Sweeper(
            settings.replica,
            self.sessions,
            self._ground.session_store,
            self.front.clients_can_beat,
            lease_ms=ms(settings.lease_seconds),
            outage_ms=ms(settings.outage_seconds),
            grace_ms=ms(settings.grace_seconds),
        )

    @cached_property
    def intake(self) -> Intake:
        ground = self._ground
        return Intake(
            training=self.training.admission,
            samples=self._sampling.admission,
            pools=Pools(ground.directory),
            artifacts=ground.artifacts,
            session_directory=ground.session_directory,
            sessions=self.sessions,
            sampling_sessions=self._sampling.sessions,
            reader=ground.reader,
            pressure=Pressure(ground.memory, ground.session_directory),
        )

    @cached_property
    def scheduler(self) -> Scheduler:
        return Scheduler(
            intake=self.intake,
            sessions=self.sessions,
            sampling_sessions=self._sampling.sessions,
            cancellation=self._sampling.cancellation,
            completions=self._sampling.completions,
            models=self.training.models,
            artifacts=self._ground.artifacts,
            training_runs=self.catalog.runs,
            checkpoints=self.catalog.checkpoints,
            directory=self._ground.directory,
            results=self.results,
            watches=self.watches,
            front=self.front,
        )
