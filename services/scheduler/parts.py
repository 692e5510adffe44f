"""The parts of one scheduler replica, put together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.common.keyring import Keyring, load_pepper
from services.scheduler.admin import Admin
from services.scheduler.artifacts import Artifacts
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
from services.scheduler.sampling.dispatcher import SampleDispatcher
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.sampling.snapshots import Snapshots
from services.scheduler.server import Scheduler
from services.scheduler.session_directory import SessionDirectory
from services.scheduler.sessions import Sessions
from services.scheduler.settings import Settings
from services.scheduler.store.connection import Redis
from services.scheduler.store.functions import Functions
from services.scheduler.store.notices import Notices
from services.scheduler.store.overview import Overview
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sessions import SessionStore
from services.scheduler.sweeper import ResultSweeper, Sweeper
from services.scheduler.training_runs import TrainingRuns
from services.scheduler.watch import WatchHub


@dataclass(frozen=True, slots=True)
class Parts:
    """What the process serves and what it runs beside."""

    scheduler: Scheduler
    registry: Registry
    admin: Admin
    training: Training
    sweeper: Sweeper
    watches: WatchHub
    directory: Directory
    front: Front
    fleet: Fleet


def limits_of(settings: Settings) -> SamplingLimits:
    return SamplingLimits(
        sample_seconds=settings.sample_seconds,
        sampler_wait_seconds=settings.sampler_wait_seconds,
        retention_ms=int(settings.retention_seconds * 1000),
        open_per_tenant=settings.open_samples_per_tenant,
        fair=settings.fair,
    )


def open_artifacts(settings: Settings, pepper: bytes) -> Artifacts:
    keyring = Keyring(Path(settings.key_file), pepper) if settings.key_file else None
    return Artifacts(Path(settings.store_root), pepper, keyring.tenant_of_digest if keyring else lambda _digest: "")


def assemble(settings: Settings, redis: Redis, functions: Functions, notices: Notices) -> Parts:
    """Raises InvalidInput when the pepper cannot be read."""
    pepper = load_pepper(Path(settings.pepper_file))
    limits = limits_of(settings)
    registry_store, session_store = RegistryStore(redis, functions), SessionStore(redis, functions)
    sampling_store, reader = SamplingStore(redis, functions), RequestReader(redis, functions)
    directory = Directory(registry_store, notices, valid_ms=int(settings.registration_seconds * 1000))
    artifacts = open_artifacts(settings, pepper)
    results = Results(reader)
    fleet = Fleet(directory, load_seconds=settings.adapter_load_seconds)
    sampling_sessions = SamplingSessions(sampling_store, session_store, artifacts, directory)
    session_directory = SessionDirectory(session_store)
    training = Training(
        redis=redis,
        functions=functions,
        replica=settings.replica,
        directory=directory,
        sessions=session_directory,
        snapshots=Snapshots(sampling_sessions, directory, fleet),
        artifacts=artifacts,
        notices=notices,
        store_root=Path(settings.store_root),
        pepper=pepper,
        leader_tasks=[
            SampleDispatcher(sampling_store, fleet, notices, limits),
            ResultSweeper(sampling_store, keep_ms=limits.retention_ms),
        ],
        gap_timeout_seconds=settings.gap_timeout_seconds,
        retention_seconds=settings.retention_seconds,
        fair=settings.fair,
        lease_ttl_ms=int(settings.term_lease_seconds * 1000),
    )
    cancellation = Cancellation(sampling_store, reader, fleet, limits)
    sessions = Sessions(session_store, training.models, cancellation, keep_ms=limits.retention_ms)
    queue_states = QueueStates(training.models, directory)
    explanations = Explanations(results, queue_states)
    watches = WatchHub(results, explanations, notices)
    front = Front(lambda: watches.streams)
    intake = Intake(
        training=training.admission,
        samples=SampleAdmission(sampling_store, limits),
        pools=Pools(directory),
        artifacts=artifacts,
        session_directory=session_directory,
        sessions=sessions,
        sampling_sessions=sampling_sessions,
        reader=reader,
    )
    scheduler = Scheduler(
        intake=intake,
        sessions=sessions,
        sampling_sessions=sampling_sessions,
        cancellation=cancellation,
        models=training.models,
        artifacts=artifacts,
        training_runs=TrainingRuns(training.models, artifacts),
        directory=directory,
        results=results,
        watches=watches,
        front=front,
    )
    admin = Admin(
        overview=Overview(redis),
        registry=registry_store,
        directory=directory,
        sessions=session_store,
        samples=sampling_store,
        results=results,
        explainer=queue_states,
    )
    sweeper = Sweeper(
        settings.replica,
        sessions,
        session_store,
        front.clients_can_beat,
        lease_ms=int(settings.lease_seconds * 1000),
        outage_ms=int(settings.outage_seconds * 1000),
        grace_ms=int(settings.grace_seconds * 1000),
    )
    return Parts(
        scheduler=scheduler,
        registry=Registry(registry_store, directory),
        admin=admin,
        training=training,
        sweeper=sweeper,
        watches=watches,
        directory=directory,
        front=front,
        fleet=fleet,
    )
