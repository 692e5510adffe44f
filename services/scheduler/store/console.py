"""What the console reads beside curves, causes and the pool's overview: names and numbers, a round trip each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.curves import CurvePoint, point_of
from services.scheduler.store.outages import reaching_redis

_FIELDS = ("state", "phase", "reason", "last_request_ms", "curve_steps", "curve_last")


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's model now; of one that is gone `state` is "". `queued`: commands that wait or run."""

    state: str = ""
    phase: str = ""
    reason: str = ""
    last_request_ms: int = 0
    steps: int = 0
    last: CurvePoint | None = None
    queued: int = 0


@dataclass(frozen=True, slots=True)
class SampleNumbers:
    """`yours`: queued or running, of the tenant; the others are of everybody. `by_sampler`: running there."""

    yours: int
    waiting: int
    running: int
    by_sampler: Counter[str]


class ConsoleReader:
    def __init__(self, redis: Redis) -> None:
        self._redis = cast("Any", redis)

    async def runs(self, places: Sequence[tuple[str, str]]) -> list[RunState]:
        """Of each (pool, run id)."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for pool, run_id in places:
                pipe.hmget(keys.model(pool, run_id), _FIELDS)
                pipe.hlen(keys.queue(pool, run_id))
            answers = await pipe.execute() if places else []
        return [_run_state(row, depth) for row, depth in zip(answers[::2], answers[1::2], strict=True)]

    async def session_names(self, tenant_id: str, session_ids: Sequence[str]) -> list[str]:
        """The display name of each, "" = it has none."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for session_id in session_ids:
                pipe.hget(keys.catalog_session(tenant_id, session_id), "display_name")
            found = await pipe.execute() if session_ids else []
        return [(name or b"").decode() for name in found]

    async def samples(self, pool: str, tenant_id: str) -> SampleNumbers:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hget(keys.sample_counts(pool), tenant_id)
            pipe.zcard(keys.pending_samples(pool))
            pipe.hvals(keys.running_samples(pool))
            yours, waiting, samplers = await pipe.execute()
        running = Counter(name.decode() for name in samplers)
        return SampleNumbers(int(yours or 0), int(waiting), running.total(), running)


def _run_state(row: Sequence[bytes | None], depth: int) -> RunState:
    state, phase, reason, asked, steps = ((value or b"").decode() for value in row[:5])
    return RunState(state, phase, reason, int(asked or 0), int(steps or 0), point_of(row[5] or b""), depth)
