"""The training path put together: admission, model book, and the leadership of every pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from services.common.errors import Unavailable
from services.scheduler.catalog.registrar import Registrar
from services.scheduler.core.seating import DEFAULT_PAGING, Paging
from services.scheduler.dispatch.admission import TrainingAdmission
from services.scheduler.dispatch.cell import Parts
from services.scheduler.dispatch.driver import Driver
from services.scheduler.dispatch.durable_store import DurableFiles
from services.scheduler.dispatch.durable_sweeper import DurableSweeper
from services.scheduler.dispatch.leadership import Leadership
from services.scheduler.dispatch.models import Models
from services.scheduler.dispatch.recovery_units import RecoveryUnits
from services.scheduler.dispatch.slot_units import SlotUnits
from services.scheduler.dispatch.sweeper import Sweeper
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.ports import (
    Admission,
    ArtifactReader,
    LeaderTask,
    ModelBook,
    ModelDirectory,
    SnapshotSink,
    TrainerDirectory,
)
from services.scheduler.store import keys
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.commands import CommandCache
from services.scheduler.store.connection import Redis
from services.scheduler.store.durables import DurableBook
from services.scheduler.store.functions import Functions
from services.scheduler.store.leases import LeaseStore
from services.scheduler.store.models import ModelReader
from services.scheduler.store.notices import Notices
from services.scheduler.store.outages import reaching_redis
from services.scheduler.store.payloads import FileBlobs, PayloadStore
from services.scheduler.store.ready import ReadyReader
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.training import DEFAULT_LIMITS, RecoveryLimits, TrainingStore
from services.scheduler.tenancy.limits import unlimited
from services.scheduler.tenancy.records import Quotas

log = logging.getLogger(__name__)

DISCOVER_SECONDS = 1.0
DRAIN_SECONDS = 10.0
RELEASE_SECONDS = 3.0


class Training:
    """`admission` and `models` work on every replica; `run` dispatches where the lease is held.

    `weights` may change while it runs.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        functions: Functions,
        replica: str,
        directory: TrainerDirectory,
        sessions: ModelDirectory,
        snapshots: SnapshotSink,
        artifacts: ArtifactReader,
        sequences: SequenceStore,
        notices: Notices,
        store_root: Path,
        pepper: bytes,
        leader_tasks: Sequence[LeaderTask] = (),
        gap_timeout_seconds: float = 900.0,
        retention_seconds: float = 86_400.0,
        fair: bool = True,
        weights: Mapping[str, float] | None = None,
        quotas: Callable[[str], Quotas] = unlimited,
        recovery: RecoveryLimits = DEFAULT_LIMITS,
        paging: Paging = DEFAULT_PAGING,
        lease_ttl_ms: int = 5_000,
    ) -> None:
        store = TrainingStore(functions, int(retention_seconds * 1000))
        payloads = PayloadStore(redis, FileBlobs(store_root / "payloads"))
        reader, commands = ModelReader(redis), CommandCache(redis)
        units = SlotUnits(store, reader, artifacts, pepper)
        catalog = Registrar(CatalogStore(redis, functions), reader, artifacts)
        ready = ReadyReader(redis, functions, commands)
        recovery_units = RecoveryUnits(reader, commands, units, pepper)
        parts = Parts(store, ready, commands, payloads, units, recovery_units, catalog, recovery)
        self.admission: Admission = TrainingAdmission(
            store, payloads, sessions, directory, artifacts, commands, sequences, quotas
        )
        self.models: ModelBook = Models(store, reader, sessions, directory)
        self._driver = Driver(parts, directory, snapshots, fair=fair, weights=weights, paging=paging)
        durables = DurableSweeper(DurableBook(redis), reader, DurableFiles(store_root))
        sweeper = Sweeper(store, payloads, durables, gap_timeout_ms=int(gap_timeout_seconds * 1000))
        tasks: list[LeaderTask] = [self._driver, sweeper, *leader_tasks]
        self._leadership = Leadership(LeaseStore(functions), replica, tasks, ttl_ms=lease_ttl_ms)
        self._redis = cast("Any", redis)
        self._campaigns: dict[str, asyncio.Task[None]] = {}
        self._stopped = asyncio.Event()
        notices.on_ready(self._ready)
        notices.on_reconnect(self._driver.wake_all)

    def _ready(self, pool: str, kind: str) -> None:
        if kind != "sample":
            self._driver.wake(pool)
        if kind == "lease":
            self._leadership.wake(pool)

    async def run(self) -> None:
        """Campaigns for the lease of every pool there is; until cancelled or stopped. Raises what a campaign raised."""
        while not self._stopped.is_set():
            await self._discover()
            for task in [task for task in self._campaigns.values() if task.done()]:
                task.result()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCOVER_SECONDS):
                    await self._stopped.wait()

    async def _discover(self) -> None:
        try:
            with reaching_redis():
                names = await self._redis.smembers(keys.POOLS)
        except Unavailable as error:
            log.warning("cannot look for pools: %s", error)
            return
        for pool in sorted(name.decode() for name in names):
            if pool not in self._campaigns:
                self._campaigns[pool] = asyncio.create_task(self._leadership.campaign(pool))

    async def stop(self) -> None:
        """Finishes running units (bounded), then releases every lease."""
        self._stopped.set()
        self._leadership.retire()
        await self._driver.drain(DRAIN_SECONDS)
        campaigns = list(self._campaigns.values())
        if campaigns:
            await asyncio.wait(campaigns, timeout=RELEASE_SECONDS)
        await end_tasks(campaigns)
