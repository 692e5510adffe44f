"""What the training path is made of: given from outside, and made here from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from services.scheduler.catalog.registrar import Registrar
from services.scheduler.core.seating import DEFAULT_PAGING, Paging
from services.scheduler.dispatch.admission import TrainingAdmission
from services.scheduler.dispatch.cell import Parts
from services.scheduler.dispatch.cell_driver import Driving
from services.scheduler.dispatch.driver import Driver
from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.dispatch.durable_sweeper import DurableSweeper
from services.scheduler.dispatch.fences import CellFences
from services.scheduler.dispatch.models import Models
from services.scheduler.dispatch.recovery_units import RecoveryUnits
from services.scheduler.dispatch.slot_units import SlotUnits
from services.scheduler.dispatch.sweeper import Sweeper
from services.scheduler.ports import ArtifactReader, LeaderTask, ModelDirectory, SnapshotSink, TrainerDirectory
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.cells import CellStore
from services.scheduler.store.commands import CommandCache
from services.scheduler.store.connection import Redis
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.functions import Functions
from services.scheduler.store.models import ModelReader
from services.scheduler.store.notices import Notices
from services.scheduler.store.payloads import FileBlobs, PayloadStore
from services.scheduler.store.ready import ReadyReader
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.training import DEFAULT_LIMITS, RecoveryLimits, TrainingStore
from services.scheduler.tenancy.limits import unlimited
from services.scheduler.tenancy.records import Quotas


@dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """`weights` may change while they are in use. Each part is made once, at its first use."""

    redis: Redis
    functions: Functions
    replica: str
    directory: TrainerDirectory
    sessions: ModelDirectory
    snapshots: SnapshotSink
    artifacts: ArtifactReader
    sequences: SequenceStore
    notices: Notices
    store_root: Path
    pepper: bytes
    leader_tasks: Sequence[LeaderTask] = ()  # beside dispatching
    gap_timeout_seconds: float = 900.0
    retention_seconds: float = 86_400.0
    fair: bool = True
    weights: Mapping[str, float] | None = None
    quotas: Callable[[str], Quotas] = unlimited
    recovery: RecoveryLimits = DEFAULT_LIMITS
    paging: Paging = DEFAULT_PAGING
    lease_ttl_ms: int = 5_000

    @cached_property
    def store(self) -> TrainingStore:
        return TrainingStore(self.functions, int(self.retention_seconds * 1000))

    @cached_property
    def payloads(self) -> PayloadStore:
        return PayloadStore(self.redis, FileBlobs(self.store_root / "payloads"))

    @cached_property
    def reader(self) -> ModelReader:
        return ModelReader(self.redis)

    @cached_property
    def commands(self) -> CommandCache:
        return CommandCache(self.redis)

    @cached_property
    def admission(self) -> TrainingAdmission:
        return TrainingAdmission(
            self.store,
            self.payloads,
            self.sessions,
            self.directory,
            self.artifacts,
            self.commands,
            self.sequences,
            self.quotas,
        )

    @cached_property
    def models(self) -> Models:
        limit = self.recovery.log_limit_bytes
        return Models(self.store, self.reader, self.sessions, self.directory, log_limit_bytes=limit)

    @cached_property
    def driver(self) -> Driver:
        weights = {} if self.weights is None else self.weights
        driving = Driving(self._of_cells(), self.directory, self.snapshots, self.fair, weights, self.paging)
        return Driver(driving)

    def _of_cells(self) -> Parts:
        units = SlotUnits(self.store, self.reader, self.artifacts, self.pepper)
        recovery_units = RecoveryUnits(self.reader, self.commands, units, self.pepper)
        ready = ReadyReader(self.redis, self.functions, self.commands)
        catalog = Registrar(CatalogStore(self.redis, self.functions), self.reader, self.artifacts)
        limits = replace(self.recovery, paging=self.paging.on)
        cells = CellStore(self.redis, self.functions, int(self.retention_seconds * 1000))
        return Parts(
            store=self.store,
            ready=ready,
            commands=self.commands,
            payloads=self.payloads,
            slot_units=units,
            recovery_units=recovery_units,
            catalog=catalog,
            limits=limits,
            cells=cells,
            fences=CellFences(self.store_root),
        )

    @property
    def tasks(self) -> list[LeaderTask]:
        """All that the holder of a pool's lease does."""
        durables = DurableSweeper(DurableBook(self.redis), self.reader, DurableFiles(self.store_root))
        gap_timeout_ms = int(self.gap_timeout_seconds * 1000)
        sweeper = Sweeper(self.store, self.payloads, durables, gap_timeout_ms=gap_timeout_ms)
        return [self.driver, sweeper, *self.leader_tasks]
