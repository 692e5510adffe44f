"""Saves after their capture: wait for the publication in the background, then settle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tinkermesh.v1 import trainer_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.clock import now_ms
from services.common.errors import (
    Gone,
    MissingResource,
    ServerError,
    StaleFence,
    TinkermeshError,
    Unavailable,
    UnknownId,
    UserError,
)
from services.common.tinker_path import EXTERNAL_WEIGHTS, SAMPLER_WEIGHTS, WEIGHTS, TinkerPath
from services.scheduler.dispatch import reports
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.ports import CatalogWriter, SnapshotSink
from services.scheduler.store.commands import CommandCache, StoredCommand
from services.scheduler.store.training import TrainingStore

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
VISIBLE_SECONDS = 10.0
"""How long a publication may take to reach this reader of the shared store."""
_KINDS = {"save_weights": WEIGHTS, "save_for_sampler": SAMPLER_WEIGHTS, "save_external": EXTERNAL_WEIGHTS}
USER, SERVER = types.FAILURE_CATEGORY_USER, types.FAILURE_CATEGORY_SERVER


class Publications:
    """One background task per captured save, alive as long as this leader."""

    def __init__(
        self,
        pool: str,
        client: TrainerClient,
        store: TrainingStore,
        sink: SnapshotSink,
        catalog: CatalogWriter,
        commands: CommandCache,
    ) -> None:
        self._pool = pool
        self._client = client
        self._store = store
        self._sink = sink
        self._catalog = catalog
        self._commands = commands
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, ref: pb.UnitRef, key: str, name: str) -> None:
        """`name`: of the artifact. Its future settles when it is published or has failed."""
        self._spawn(self._follow(ref, key, name))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a publication was not settled: %s", error, exc_info=error)

    async def cancel(self) -> None:
        await end_tasks(list(self._tasks))

    async def _follow(self, ref: pb.UnitRef, key: str, name: str) -> None:
        while True:
            try:
                await self._settle(ref, key, name, await self._outcome(ref))
                await self._client.acknowledge(ref.term, ref.incarnation, [ref.unit_id])
                return
            except Unavailable as error:
                log.warning("publication of unit %s: %s; asking again", ref.unit_id, error)
                await asyncio.sleep(RETRY_SECONDS)
            except StaleFence:
                return  # the next leader follows it

    async def _outcome(self, ref: pb.UnitRef) -> pb.ArtifactOutcome:
        try:
            return await self._client.artifact(ref)
        except (UnknownId, Gone):
            return _failed(ref, "the trainer no longer knows this save; save again")
        except (Unavailable, StaleFence):
            raise
        except TinkermeshError as error:
            return _failed(ref, f"trainer broke its contract: {error.message}; save again")

    async def _settle(self, ref: pb.UnitRef, key: str, name: str, outcome: pb.ArtifactOutcome) -> None:
        started = now_ms()
        stored = (await self._commands.get(self._pool, [key])).get(key)
        failed = await self._settled(ref, key, name, outcome, stored)
        if stored is not None:
            reports.report(stored, "fail" if failed else "done", failed, started)

    async def _settled(
        self, ref: pb.UnitRef, key: str, name: str, outcome: pb.ArtifactOutcome, stored: StoredCommand | None
    ) -> str:
        """Why it failed, "" when it did not."""
        if outcome.HasField("failure") or stored is None:
            failed = outcome.failure
            return await self._fail(ref, key, failed.category or SERVER, failed.message)
        try:
            result, path = await self._published(stored, name, outcome)
        except UserError as error:
            return await self._fail(ref, key, USER, error.message)
        except Unavailable:
            raise
        except TinkermeshError as error:
            return await self._fail(ref, key, SERVER, error.message)
        await self._store.artifact_done(self._pool, ref.term, key, result.SerializeToString(), path)
        return ""

    async def _fail(self, ref: pb.UnitRef, key: str, category: int, message: str) -> str:
        await self._store.artifact_failed(self._pool, ref.term, key, category, message)
        return message or "no cause given"

    async def _published(
        self, stored: StoredCommand, name: str, outcome: pb.ArtifactOutcome
    ) -> tuple[types.Result, str]:
        body = str(stored.command.WhichOneof("body"))
        path = TinkerPath(stored.model_id, _KINDS[body], name)
        await self._seen(path, outcome.size_bytes)
        result = types.SaveResult(path=str(path), size_bytes=outcome.size_bytes)
        if body == "save_for_sampler":
            save = stored.command.save_for_sampler
            seq = save.sampling_session_seq_id if save.HasField("sampling_session_seq_id") else None
            result.sampling_session_id = await self._sink.published(
                self._pool, stored.tenant, str(path), outcome.version_directory, seq
            )
        return types.Result(save=result), str(path)

    async def _seen(self, path: TinkerPath, size_bytes: int) -> None:
        """Remote file systems show a new name late. Raises ServerError when this one does not in time (CKPT-21)."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + VISIBLE_SECONDS
        while True:
            try:
                return await self._catalog.published(self._pool, path, size_bytes)
            except MissingResource as error:
                if loop.time() >= ends:
                    text = f"{path} was published, but the scheduler does not see it in the shared store"
                    raise ServerError(f"{text} after {VISIBLE_SECONDS:g} s; check its mount, save again") from error
            await asyncio.sleep(RETRY_SECONDS)


def _failed(ref: pb.UnitRef, message: str) -> pb.ArtifactOutcome:
    return pb.ArtifactOutcome(unit_id=ref.unit_id, failure=types.Failure(category=SERVER, message=message))
