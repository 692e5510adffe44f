"""One bounded look at a pool for its metrics: five round trips, MODELS models of a cell and SAMPLES samples at most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from redis.asyncio import Redis

from services.scheduler.store import keys
from services.scheduler.store.cells import known_cells
from services.scheduler.store.connection import server_now_ms
from services.scheduler.store.outages import reaching_redis

MODELS = 128
SAMPLES = 256

_MODEL = ("tenant", "next_seq", "phase", "base_pos", "barrier_pos", "log_end", "applied", "steps_since")


@dataclass(frozen=True, slots=True)
class ModelState:
    """`next_seq` is the head of its queue."""

    tenant: str
    next_seq: str
    phase: str
    base_pos: int
    barrier_pos: int
    log_end: int
    applied: int
    steps_since: int


@dataclass(slots=True)
class PoolState:
    """Ages in seconds by Redis TIME, 0 = nothing waits; `ages` by (path, tenant class)."""

    now_ms: int
    counters: dict[str, int]
    slots: Counter[str]
    models: dict[str, int]
    queued: dict[str, int]
    running_units: int
    running_samples: int
    captures: int
    gap_seconds: float
    seek_seconds: float
    recovering_seconds: float
    due_durables: frozenset[str]
    broken: bool
    ages: dict[tuple[str, str], float] = field(default_factory=dict)
    window_entries: int = 0
    log_entries: int = 0
    steps_since: int = 0
    replayed: int = 0
    replay_left: int = 0


class PoolStateReader:
    def __init__(self, redis: Redis, class_of: Callable[[str], str]) -> None:
        self._redis = cast("Any", redis)
        self._class_of = class_of

    async def read(self, pool: str) -> PoolState:
        """Raises Unavailable."""
        with reaching_redis():
            now_ms = await server_now_ms(self._redis)
            state, waiting, held, recovering, samples = await self._indexes(pool, now_ms)
            names = list(dict.fromkeys([*recovering, *waiting, *held]))[: 2 * MODELS]
            models = dict(zip(names, await self._models(pool, names), strict=True))
            heads = await self._heads(pool, waiting, models)
            await self._ages(pool, state, heads, samples)
        _sum_up(state, models, recovering)
        return state

    async def _indexes(self, pool: str, now_ms: int) -> tuple[PoolState, list[str], list[str], list[str], list[str]]:
        """The state without what models and requests say, and which of those to read."""
        cells = await known_cells(self._redis, pool)
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(keys.counters(pool))
        pipe.zcard(keys.pending_samples(pool))
        pipe.scard(keys.running_units(pool))
        pipe.hlen(keys.running_samples(pool))
        pipe.scard(keys.capturing(pool))
        pipe.zrange(keys.gaps(pool), 0, 0, withscores=True)
        pipe.zrange(keys.pending_samples(pool), 0, SAMPLES - 1)
        for cell in cells:
            _ask_cell(pipe, pool, cell, now_ms)
        counters, pending, units, samples, captures, gap, sampling_first, *found = await pipe.execute()
        one = _of_all_cells([found[at : at + _PER_CELL] for at in range(0, len(found), _PER_CELL)])
        holders, sampling = one.holders, _texts(sampling_first)
        state = PoolState(
            now_ms=now_ms,
            counters={name.decode(): int(value) for name, value in counters.items()},
            slots=Counter(map(slot_state, holders)),
            models={
                "in_slot": sum(slot_state(holder) == "held" for holder in holders),
                "ready": one.counts[0],
                "creating": one.counts[1],
                "seeking": one.counts[2],
                "recovering": one.counts[3],
                "unseated": one.counts[4],
            },
            queued={"sample": pending, "train": 0},
            running_units=units,
            running_samples=samples,
            captures=captures,
            gap_seconds=_since(gap, now_ms),
            seek_seconds=_since(one.seek, now_ms),
            recovering_seconds=_since(one.recover, now_ms),
            due_durables=frozenset(one.due),
            broken=one.broken,
        )
        held = [holder for holder in holders if slot_state(holder) == "held"]
        return state, one.waiting, held, one.filling, sampling

    async def _models(self, pool: str, names: Sequence[str]) -> list[ModelState]:
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hmget(keys.model(pool, name), _MODEL)
        rows = await pipe.execute() if names else []
        return [_model([(value or b"").decode() for value in row]) for row in rows]

    async def _heads(self, pool: str, waiting: Sequence[str], models: dict[str, ModelState]) -> list[str]:
        """Keys of the commands that come next, and how many are queued behind each."""
        wanted = [name for name in waiting if name in models]
        pipe = self._redis.pipeline(transaction=False)
        for name in wanted:
            pipe.hget(keys.queue(pool, name), models[name].next_seq or "0")
        return [key.decode() for key in await pipe.execute() if key] if wanted else []

    async def _ages(self, pool: str, state: PoolState, heads: Sequence[str], samples: Sequence[str]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for key in (*heads, *samples):
            pipe.hmget(keys.req(pool, key), ("tenant", "admitted_ms", "state"))
        rows = await pipe.execute() if heads or samples else []
        state.queued["train"] = len(heads)
        for path, (tenant, admitted, status) in zip(
            ["train"] * len(heads) + ["sample"] * len(samples), rows, strict=True
        ):
            if tenant is None or status != b"queued":
                continue
            place = (path, self._class_of(tenant.decode()))
            age = max(0.0, (state.now_ms - int(admitted or state.now_ms)) / 1000)
            state.ages[place] = max(state.ages.get(place, 0.0), age)


_PER_CELL = 14


def _ask_cell(pipe: Any, pool: str, cell: str, now_ms: int) -> None:
    """_PER_CELL questions."""
    pipe.hvals(keys.slots(pool, cell))
    pipe.hget(keys.cell(pool, cell), "broken")
    for name in (keys.active, keys.creates, keys.seekers, keys.recovering, keys.unseated):
        pipe.zcard(name(pool, cell))
    for name in (keys.seekers, keys.recovering):
        pipe.zrange(name(pool, cell), 0, 0, withscores=True)
    pipe.zrangebyscore(keys.durables(pool, cell), "-inf", now_ms, start=0, num=MODELS)
    for name in (keys.active, keys.creates, keys.seekers, keys.recovering):
        pipe.zrange(name(pool, cell), 0, MODELS - 1)


@dataclass(slots=True)
class _Cells:
    """What those answer, of all cells of a pool together; `counts` as they are asked."""

    holders: list[str] = field(default_factory=list)
    broken: bool = False
    counts: list[int] = field(default_factory=lambda: [0] * 5)
    seek: list[tuple[bytes, float]] = field(default_factory=list)
    recover: list[tuple[bytes, float]] = field(default_factory=list)
    due: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    filling: list[str] = field(default_factory=list)


def _of_all_cells(answers: Sequence[Sequence[Any]]) -> _Cells:
    one = _Cells()
    for slots, broken, *rest in answers:
        one.holders += _texts(slots)
        one.broken = one.broken or bool(broken)
        one.counts = [total + more for total, more in zip(one.counts, rest[:5], strict=True)]
        seek, recover, due, ready, creating, seeking, filling = rest[5:]
        one.seek += seek
        one.recover += recover
        one.due += _texts(due)
        one.waiting += [*_texts(ready), *_texts(creating), *_texts(seeking)]
        one.filling += _texts(filling)
    one.seek.sort(key=lambda first: first[1])
    one.recover.sort(key=lambda first: first[1])
    return one


def slot_state(holder: str) -> str:
    """free, held, unloading or quarantined; `holder` as in keys.slots."""
    if not holder:
        return "free"
    what = holder.partition(":")[0]
    return {"unload": "unloading", "quarantine": "quarantined"}.get(what, "held") if ":" in holder else "held"


def _sum_up(state: PoolState, models: dict[str, ModelState], recovering: Iterable[str]) -> None:
    live = [model for model in models.values() if model.phase == "live"]
    state.window_entries = max((model.log_end - model.barrier_pos for model in live), default=0)
    state.log_entries = max((model.log_end - model.base_pos for model in live), default=0)
    state.steps_since = max((model.steps_since for model in live), default=0)
    filling = [models[name] for name in recovering if name in models]
    state.replayed = sum(max(0, model.applied - model.base_pos) for model in filling)
    state.replay_left = sum(max(0, model.log_end - max(model.applied, model.base_pos)) for model in filling)


def _model(row: Sequence[str]) -> ModelState:
    return ModelState(row[0], row[1], row[2] or "live", *(int(text or 0) for text in row[3:]))


def _since(first: Sequence[tuple[bytes, float]], now_ms: int) -> float:
    return max(0.0, (now_ms - first[0][1]) / 1000) if first else 0.0


def _texts(values: Iterable[bytes]) -> list[str]:
    return [value.decode() for value in values]
