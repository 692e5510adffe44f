"""Implements the Explainer: why a training command or a sample is still pending."""

from __future__ import annotations

from services.common.ids import RequestId
from services.scheduler.directory import Directory
from services.scheduler.explanations import ACTIVE, PAUSED_CAPACITY
from services.scheduler.ports import ModelBook
from services.scheduler.store.requests import Head
from services.scheduler.store.sampling import SamplingStore


class QueueStates:
    def __init__(self, models: ModelBook, directory: Directory, samples: SamplingStore) -> None:
        self._models = models
        self._directory = directory
        self._samples = samples

    async def explain(self, request: RequestId, head: Head) -> tuple[str, str]:
        if head.kind != "sample":
            return await self._models.queue_state(request.pool, head.parent, head.seq)
        if not await self._directory.live(request.pool, "samplers"):
            return PAUSED_CAPACITY, "no live sampler: the mesh waits for one"
        before = None if head.state == "running" else await self._samples.waiting_before(request.pool, request.key)
        if before is None:
            return ACTIVE, "sampling"
        return ACTIVE, f"waiting for a sampler to have room; {before} samples of this pool came before it"
