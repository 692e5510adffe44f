"""Queues of models: all of them counted, a tenant's own described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinkermesh.v1 import console_pb2 as pb

from services.scheduler.store.overview import Overview

DESCRIBED = 20


@dataclass(frozen=True, slots=True)
class BusyModel:
    """`depth`: commands that wait or run; `next_seq`: the one that comes next."""

    pool: str
    model_id: str
    tenant: str
    next_seq: int
    depth: int


class ConsoleQueues:
    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    async def busy(self, pool: str) -> list[BusyModel]:
        """All models with commands."""
        names = await self._overview.busy_models(pool)
        rows = await self._overview.models(pool, names, ("tenant", "next_seq"))
        depths = await self._overview.depths(pool, names) if names else []
        return [
            BusyModel(pool, name, row["tenant"], int(row["next_seq"] or 0), depth)
            for name, row, depth in zip(names, rows, depths, strict=True)
        ]

    async def described(self, own: Sequence[BusyModel], now_ms: int) -> list[pb.ConsoleQueue]:
        """The deepest DESCRIBED of a tenant's own."""
        deepest = sorted(own, key=lambda one: (-one.depth, one.model_id))[:DESCRIBED]
        return [await self._queue(one, now_ms) for one in deepest if one.depth]

    async def _queue(self, one: BusyModel, now_ms: int) -> pb.ConsoleQueue:
        waiting, rows = await self._overview.queued(one.pool, one.model_id)
        oldest = min((int(row["admitted_ms"]) for row in rows if row["admitted_ms"]), default=now_ms)
        misses = bool(waiting) and one.next_seq not in waiting
        return pb.ConsoleQueue(
            run_id=one.model_id,
            depth=len(waiting),
            oldest_ms=max(0, now_ms - oldest),
            misses_command=misses,
            waits_for_seq=one.next_seq if misses else 0,
        )
