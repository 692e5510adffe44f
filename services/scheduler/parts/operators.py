"""What operators talk to: the Admin service, and the Tenants service over the tenant book."""

from __future__ import annotations

from services.scheduler.admin import Admin
from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.dispatch.durable_sweeper import DurableSweeper
from services.scheduler.explanations import Explainer
from services.scheduler.jobs.sweeper import JobSweeper
from services.scheduler.operations.changes import Changes
from services.scheduler.operations.durable_points import DurablePointList
from services.scheduler.operations.engines import Engines
from services.scheduler.operations.gc import GcPlan, Times
from services.scheduler.operations.leases import Leases
from services.scheduler.operations.snapshots import SnapshotList
from services.scheduler.operations.tiers import TierList
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.results import Results
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.garbage import GarbageReader
from services.scheduler.store.libraries import LibraryShelf
from services.scheduler.store.models import ModelReader
from services.scheduler.store.operations import OperatorStore
from services.scheduler.store.overview import Overview
from services.scheduler.store.payloads import PayloadStore
from services.scheduler.tenancy.desk import TenantDesk
from services.scheduler.tenancy.keys import KeyDesk
from services.scheduler.tenancy.service import Tenants


def make_admin(ground: Ground, results: Results, explainer: Explainer, fleet: Fleet, jobs: JobSweeper) -> Admin:
    overview, registry, settings = Overview(ground.redis), ground.registry_store, ground.settings
    store = OperatorStore(
        ground.functions, retention_ms=ground.retention_ms, valid_ms=ms(settings.registration_seconds)
    )
    return Admin(
        overview=overview,
        registry=registry,
        sessions=ground.session_store,
        samples=ground.sampling_store,
        results=results,
        explainer=explainer,
        changes=Changes(store, registry, ground.directory, overview),
        leases=Leases(overview, registry, ground.session_store, lease_ms=ms(settings.lease_seconds)),
        durable_points=DurablePointList(overview, DurableBook(ground.redis)),
        snapshots=SnapshotList(fleet),
        engines=Engines(fleet),
        tiers=TierList(fleet),
        gc=_make_gc(ground, overview, jobs),
    )


def _make_gc(ground: Ground, overview: Overview, jobs: JobSweeper) -> GcPlan:
    settings, redis = ground.settings, ground.redis
    return GcPlan(
        overview,
        GarbageReader(redis),
        PayloadStore(redis, ground.blobs),
        DurableSweeper(DurableBook(redis), ModelReader(redis), DurableFiles(ground.store_root)),
        LibraryShelf(redis, ground.functions, settings.replica),
        jobs,
        Times(ms(settings.lease_seconds), ms(settings.gap_timeout_seconds)),
    )


def make_tenants(ground: Ground) -> Tenants:
    """Raises InvalidInput when the pepper cannot be read."""
    store, book = ground.tenancy_store, ground.book
    return Tenants(book, KeyDesk(store, book, ground.pepper), TenantDesk(store, book, ground.registry_store.pools))
