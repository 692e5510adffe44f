"""Durable points after their capture: wait for the publication in the background, then make it the base."""

from __future__ import annotations

import asyncio
import logging

from tinkermesh.v1 import trainer_pb2 as pb

from services.common.errors import Gone, StaleFence, TinkermeshError, Unavailable, UnknownId
from services.scheduler.dispatch.client import TrainerClient
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.store.training import TrainingStore

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
LATER_SECONDS = 0.05


class DurablePoints:
    """One background task per captured durable point, alive as long as this leader."""

    def __init__(self, pool: str, client: TrainerClient, store: TrainingStore) -> None:
        self._pool = pool
        self._client = client
        self._store = store
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, ref: pb.UnitRef, model_id: str) -> None:
        """Once, however often it is asked for."""
        if ref.unit_id in self._tasks:
            return
        task = asyncio.create_task(self._follow(ref, model_id))
        self._tasks[ref.unit_id] = task
        task.add_done_callback(lambda done: self._finished(ref.unit_id, done))

    def _finished(self, unit_id: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(unit_id, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a durable point was not settled: %s", error, exc_info=error)

    async def cancel(self) -> None:
        await end_tasks(list(self._tasks.values()))

    async def _follow(self, ref: pb.UnitRef, model_id: str) -> None:
        while True:
            try:
                if not await self._settle(ref, model_id, await self._outcome(ref)):
                    await asyncio.sleep(LATER_SECONDS)
                    continue
                await self._client.acknowledge(ref.term, ref.incarnation, [ref.unit_id])
                return
            except Unavailable as error:
                log.warning("durable point of model %s: %s; asking again", model_id, error)
                await asyncio.sleep(RETRY_SECONDS)
            except StaleFence:
                return  # the next leader follows it

    async def _outcome(self, ref: pb.UnitRef) -> pb.ArtifactOutcome:
        try:
            return await self._client.artifact(ref)
        except (Unavailable, StaleFence):
            raise
        except (UnknownId, Gone) as error:
            return _failed(ref, f"the trainer does not know it any more: {error.message}")
        except TinkermeshError as error:
            return _failed(ref, error.message)

    async def _settle(self, ref: pb.UnitRef, model_id: str, outcome: pb.ArtifactOutcome) -> bool:
        """False: a save it covers is to be published first."""
        directory = outcome.version_directory
        if outcome.HasField("failure"):
            log.error("durable point of model %s failed: %s; it is tried again", model_id, outcome.failure.message)
            directory = ""
        return await self._store.durable_settled(self._pool, ref.term, model_id, ref.unit_id, directory)


def _failed(ref: pb.UnitRef, message: str) -> pb.ArtifactOutcome:
    outcome = pb.ArtifactOutcome(unit_id=ref.unit_id)
    outcome.failure.message = message
    return outcome
