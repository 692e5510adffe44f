"""The parts of one scheduler replica, put together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from services.common.keyring import Keyring, load_pepper
from services.scheduler.admin import Admin
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.checkpoints import Checkpoints
from services.scheduler.catalog.copies import Copies
from services.scheduler.catalog.downloads import Downloads
from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.catalog.server import Catalog
from services.scheduler.catalog.sessions import SessionCatalog
from services.scheduler.catalog.sweeper import CatalogSweeper
from services.scheduler.directory import Directory
from services.scheduler.dispatch.training import Training
from services.scheduler.explanations import Explanations
from services.scheduler.front import Front
from services.scheduler.intake import Intake
from services.scheduler.pools import Pools
from services.scheduler.queue_states import QueueStates
from services.scheduler.registry import Registry
from services.scheduler.results import Results
from services.scheduler.sampling.admission import SampleAdmission
from services.scheduler.sampling.cancel import Cancellation
from services.scheduler.sampling.completions import Completions
from services.scheduler.sampling.dispatcher import SampleDispatcher
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.sampling.snapshots import Snapshots
from services.scheduler.server import Scheduler
from services.scheduler.session_directory import SessionDirectory
from services.scheduler.sessions import Sessions
from services.scheduler.settings import Settings
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.completions import CompletionStore
from services.scheduler.store.connection import Redis
from services.scheduler.store.functions import Functions
from services.scheduler.store.notices import Notices
from services.scheduler.store.overview import Overview
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.sessions import SessionStore
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.sweeper import ResultSweeper, Sweeper
from services.scheduler.tenancy.book import TenantBook
from services.scheduler.tenancy.desk import TenantDesk
from services.scheduler.tenancy.keys import KeyDesk
from services.scheduler.tenancy.places import SessionPlaces
from services.scheduler.tenancy.service import Tenants
from services.scheduler.watch import WatchHub


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process serves and what it runs beside."""

    scheduler: Scheduler
    catalog: Catalog
    catalog_sweeper: CatalogSweeper
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


class Assembly:
    """Each part is made once, at its first use, after the parts it needs."""

    def __init__(self, settings: Settings, redis: Redis, functions: Functions, notices: Notices) -> None:
        self._settings = settings
        self._redis = redis
        self._functions = functions
        self._notices = notices

    def parts(self) -> Parts:
        """Raises InvalidInput when the pepper cannot be read."""
        return Parts(
            scheduler=self.scheduler,
            catalog=self.catalog,
            catalog_sweeper=CatalogSweeper(self.catalog_store, self.artifacts),
            registry=Registry(self.registry_store, self.directory),
            admin=self.admin,
            tenants=self.tenants,
            book=self.book,
            training=self.training,
            sweeper=self.sweeper,
            watches=self.watches,
            directory=self.directory,
            front=self.front,
            fleet=self.fleet,
        )

    # -- what comes from the settings ----------------------------------------------------

    @cached_property
    def pepper(self) -> bytes:
        return load_pepper(Path(self._settings.pepper_file))

    @cached_property
    def store_root(self) -> Path:
        return Path(self._settings.store_root)

    @cached_property
    def limits(self) -> SamplingLimits:
        return SamplingLimits(
            sample_seconds=self._settings.sample_seconds,
            sampler_wait_seconds=self._settings.sampler_wait_seconds,
            retention_ms=_ms(self._settings.retention_seconds),
            fair=self._settings.fair,
        )

    # -- Redis and the shared store ------------------------------------------------------

    @cached_property
    def registry_store(self) -> RegistryStore:
        return RegistryStore(self._redis, self._functions)

    @cached_property
    def session_store(self) -> SessionStore:
        return SessionStore(self._redis, self._functions)

    @cached_property
    def sampling_store(self) -> SamplingStore:
        return SamplingStore(self._redis, self._functions, self.sequences)

    @cached_property
    def sequences(self) -> SequenceStore:
        return SequenceStore(self._redis, _ms(self._settings.record_seconds))

    @cached_property
    def completion_store(self) -> CompletionStore:
        return CompletionStore(self._functions)

    @cached_property
    def reader(self) -> RequestReader:
        return RequestReader(self._redis, self._functions)

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.store_root, self.pepper, self.book.tenant_of_digest, self.catalog_store)

    @cached_property
    def catalog_store(self) -> CatalogStore:
        return CatalogStore(self._redis, self._functions)

    @cached_property
    def tenancy_store(self) -> TenancyStore:
        return TenancyStore(self._redis, self._functions)

    @cached_property
    def book(self) -> TenantBook:
        key_file = self._settings.key_file
        keyring = Keyring(Path(key_file), self.pepper) if key_file else None
        return TenantBook(self.tenancy_store, keyring, self._settings.quotas)

    # -- what several parts share --------------------------------------------------------

    @cached_property
    def directory(self) -> Directory:
        return Directory(self.registry_store, self._notices, valid_ms=_ms(self._settings.registration_seconds))

    @cached_property
    def session_directory(self) -> SessionDirectory:
        return SessionDirectory(self.session_store)

    @cached_property
    def fleet(self) -> Fleet:
        return Fleet(self.directory, load_seconds=self._settings.adapter_load_seconds)

    @cached_property
    def presence(self) -> SamplerPresence:
        return SamplerPresence(self.directory, expected=self._settings.samplers)

    @cached_property
    def results(self) -> Results:
        return Results(self.reader)

    @cached_property
    def sampling_sessions(self) -> SamplingSessions:
        return SamplingSessions(self.sampling_store, self.session_store, self.artifacts, self.directory, self.presence)

    @cached_property
    def completions(self) -> Completions:
        grace_ms = _ms(self._settings.retrieved_grace_seconds)
        return Completions(self.completion_store, retrieved_grace_ms=grace_ms)

    @cached_property
    def cancellation(self) -> Cancellation:
        return Cancellation(self.sampling_store, self.reader, self.fleet, self.limits)

    @cached_property
    def sessions(self) -> Sessions:
        places = SessionPlaces(self.tenancy_store, self.session_store, self.book)
        keep_ms = self.limits.retention_ms
        models, catalog = self.training.models, self.catalog_store
        return Sessions(self.session_store, models, self.cancellation, places, catalog, keep_ms=keep_ms)

    @cached_property
    def training_runs(self) -> TrainingRuns:
        return TrainingRuns(self.catalog_store, self.training.models, self.artifacts)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.catalog_store, self.artifacts)

    @cached_property
    def queue_states(self) -> QueueStates:
        return QueueStates(self.training.models, self.directory, self.sampling_store)

    @cached_property
    def watches(self) -> WatchHub:
        explanations = Explanations(self.results, self.queue_states)
        return WatchHub(self.results, self.completions, explanations, self._notices)

    @cached_property
    def front(self) -> Front:
        return Front(lambda: self.watches.streams)

    # -- what the process serves and runs ------------------------------------------------

    @cached_property
    def training(self) -> Training:
        return Training(
            redis=self._redis,
            functions=self._functions,
            replica=self._settings.replica,
            directory=self.directory,
            sessions=self.session_directory,
            snapshots=Snapshots(self.sampling_sessions, self.directory, self.fleet),
            artifacts=self.artifacts,
            sequences=self.sequences,
            notices=self._notices,
            store_root=self.store_root,
            pepper=self.pepper,
            leader_tasks=[
                SampleDispatcher(self.sampling_store, self.fleet, self._notices, self.limits, self.book.weights),
                ResultSweeper(self.sampling_store, keep_ms=self.limits.retention_ms),
            ],
            gap_timeout_seconds=self._settings.gap_timeout_seconds,
            retention_seconds=self._settings.retention_seconds,
            fair=self._settings.fair,
            weights=self.book.weights,
            quotas=self.book.quotas,
            lease_ttl_ms=_ms(self._settings.term_lease_seconds),
        )

    @cached_property
    def intake(self) -> Intake:
        return Intake(
            training=self.training.admission,
            samples=SampleAdmission(self.sampling_store, self.presence, self.limits, self.book.quotas),
            pools=Pools(self.directory),
            artifacts=self.artifacts,
            session_directory=self.session_directory,
            sessions=self.sessions,
            sampling_sessions=self.sampling_sessions,
            reader=self.reader,
        )

    @cached_property
    def scheduler(self) -> Scheduler:
        return Scheduler(
            intake=self.intake,
            sessions=self.sessions,
            sampling_sessions=self.sampling_sessions,
            cancellation=self.cancellation,
            completions=self.completions,
            models=self.training.models,
            artifacts=self.artifacts,
            training_runs=self.training_runs,
            checkpoints=self.checkpoints,
            directory=self.directory,
            results=self.results,
            watches=self.watches,
            front=self.front,
        )

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(
            runs=self.training_runs,
            checkpoints=self.checkpoints,
            sessions=SessionCatalog(self.catalog_store, self.session_store),
            copies=Copies(self.catalog_store, self.artifacts, self.session_directory),
            downloads=Downloads(self.artifacts),
            store=self.catalog_store,
            artifacts=self.artifacts,
        )

    @cached_property
    def admin(self) -> Admin:
        return Admin(
            overview=Overview(self._redis),
            registry=self.registry_store,
            directory=self.directory,
            sessions=self.session_store,
            samples=self.sampling_store,
            results=self.results,
            explainer=self.queue_states,
        )

    @cached_property
    def tenants(self) -> Tenants:
        return Tenants(
            self.book,
            KeyDesk(self.tenancy_store, self.book, self.pepper),
            TenantDesk(self.tenancy_store, self.book, self.registry_store.pools),
        )

    @cached_property
    def sweeper(self) -> Sweeper:
        return Sweeper(
            self._settings.replica,
            self.sessions,
            self.session_store,
            self.front.clients_can_beat,
            lease_ms=_ms(self._settings.lease_seconds),
            outage_ms=_ms(self._settings.outage_seconds),
            grace_ms=_ms(self._settings.grace_seconds),
        )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
