"""What every part stands on: settings in the units of their users, stores, the tenant book, directories."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from services.common.keyring import Keyring, load_pepper
from services.scheduler.artifacts import Artifacts
from services.scheduler.directory import Directory
from services.scheduler.results import Results
from services.scheduler.session_directory import SessionDirectory
from services.scheduler.settings import Settings
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.connection import Redis
from services.scheduler.store.functions import Functions
from services.scheduler.store.memory import MemoryGate
from services.scheduler.store.notices import Notices
from services.scheduler.store.payloads import BlobStore, FileBlobs
from services.scheduler.store.registry import RegistryStore
from services.scheduler.store.requests import RequestReader
from services.scheduler.store.sampling import SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.sessions import SessionStore
from services.scheduler.store.tenancy import TenancyStore
from services.scheduler.tenancy.book import TenantBook


class Ground:
    """Each part is made once, at its first use. What needs the pepper raises InvalidInput when it cannot be read."""

    def __init__(self, settings: Settings, redis: Redis, functions: Functions, notices: Notices) -> None:
        self.settings = settings
        self.redis = redis
        self.functions = functions
        self.notices = notices

    @cached_property
    def pepper(self) -> bytes:
        return load_pepper(Path(self.settings.pepper_file))

    @cached_property
    def store_root(self) -> Path:
        return Path(self.settings.store_root)

    @cached_property
    def retention_ms(self) -> int:
        return ms(self.settings.retention_seconds)

    # -- stores --------------------------------------------------------------------------

    @cached_property
    def registry_store(self) -> RegistryStore:
        return RegistryStore(self.redis, self.functions)

    @cached_property
    def session_store(self) -> SessionStore:
        return SessionStore(self.redis, self.functions)

    @cached_property
    def sampling_store(self) -> SamplingStore:
        return SamplingStore(self.redis, self.functions, self.sequences)

    @cached_property
    def sequences(self) -> SequenceStore:
        return SequenceStore(self.redis, self.functions, ms(self.settings.record_seconds))

    @cached_property
    def catalog_store(self) -> CatalogStore:
        return CatalogStore(self.redis, self.functions)

    @cached_property
    def tenancy_store(self) -> TenancyStore:
        return TenancyStore(self.redis, self.functions)

    @cached_property
    def reader(self) -> RequestReader:
        return RequestReader(self.redis, self.functions, self.blobs)

    @cached_property
    def results(self) -> Results:
        return Results(self.reader, delivered_grace_ms=ms(self.settings.delivered_grace_seconds))

    @cached_property
    def blobs(self) -> BlobStore:
        return FileBlobs(self.store_root / "payloads")

    @cached_property
    def memory(self) -> MemoryGate:
        return MemoryGate(self.redis, self.settings.redis_high_water)

    # -- who is who, and what is where ---------------------------------------------------

    @cached_property
    def book(self) -> TenantBook:
        key_file = self.settings.key_file
        keyring = Keyring(Path(key_file), self.pepper) if key_file else None
        return TenantBook(self.tenancy_store, keyring, self.settings.quotas)

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.store_root, self.pepper, self.book.tenant_of_digest, self.catalog_store)

    @cached_property
    def directory(self) -> Directory:
        return Directory(self.registry_store, self.notices, valid_ms=ms(self.settings.registration_seconds))

    @cached_property
    def session_directory(self) -> SessionDirectory:
        return SessionDirectory(self.session_store)


def ms(seconds: float) -> int:
    return int(seconds * 1000)
