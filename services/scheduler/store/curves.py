"""The curves of models: what each optimizer step reported, as functions/_curves.lua keeps it."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.outages import reaching_redis

_POINT = struct.Struct(">Iddddd")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """`loss_sum` over `positions` of all datums of the step's window (0 positions: it had none).

    `learning_rate` and `grad_norm` are None when the step did not tell them.
    """

    step: int
    unix_ms: int
    loss_sum: float
    positions: int
    learning_rate: float | None
    grad_norm: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """`stride`: of how many steps one is among the points; the newest step is always the last point."""

    steps: int
    stride: int
    points: tuple[CurvePoint, ...]


class CurveReader:
    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def read(self, pool: str, model_id: str) -> Curve:
        """Without points when the model has none, or is gone. Raises Unavailable."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.lrange(keys.curve(pool, model_id), 0, -1)
            pipe.hmget(keys.model(pool, model_id), ("curve_steps", "curve_stride", "curve_last"))
            kept, (steps, stride, newest) = await pipe.execute()
        return Curve(int(steps or 0), int(stride or 1), _points(kept, newest))


def point_of(data: bytes) -> CurvePoint | None:
    """None when it is no point."""
    if len(data) != _POINT.size:
        return None
    step, unix_ms, loss_sum, positions, rate, norm = _POINT.unpack(data)
    return CurvePoint(step, int(unix_ms), loss_sum, int(positions), _known(rate), _known(norm))


def _points(kept: Sequence[bytes], newest: bytes | None) -> tuple[CurvePoint, ...]:
    found = [point for data in (*kept, newest or b"") if (point := point_of(data)) is not None]
    if len(found) > 1 and found[-1].step == found[-2].step:
        found.pop()
    return tuple(found)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
