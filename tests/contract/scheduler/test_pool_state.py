"""What the leader reads for a pool's metrics, of a real Redis: right numbers, and no more commands than promised."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from services.scheduler.pool_metrics import PoolShelf, values_of
from services.scheduler.store import keys
from services.scheduler.store.connection import server_now_ms
from services.scheduler.store.pool_state import MODELS, SAMPLES, PoolStateReader, slot_state

POOL = "p"


def class_of(tenant: str) -> str:
    return "high" if tenant == "vip" else "normal"


class Written:
    """A pool as the functions would have left it, written by hand."""

    def __init__(self, redis: Redis, now_ms: int) -> None:
        self._redis: Any = redis
        self.now_ms = now_ms

    async def model(self, name: str, tenant: str, waited_ms: int | None = None, **row: object) -> None:
        """With a command at the head of its queue when it has waited."""
        fields = {"tenant": tenant, "next_seq": "7", "phase": "live", **{k: str(v) for k, v in row.items()}}
        await self._redis.hset(keys.model(POOL, name), mapping=fields)
        if waited_ms is not None:
            await self._redis.zadd(keys.active(POOL), {name: self.now_ms - waited_ms})
            await self._redis.hset(keys.queue(POOL, name), "7", f"key-{name}")
            await self.request(f"key-{name}", tenant, waited_ms)

    async def request(self, key: str, tenant: str, waited_ms: int, state: str = "queued") -> None:
        row = {"tenant": tenant, "admitted_ms": str(self.now_ms - waited_ms), "state": state}
        await self._redis.hset(keys.req(POOL, key), mapping=row)

    async def sample(self, key: str, tenant: str, waited_ms: int) -> None:
        await self.request(key, tenant, waited_ms)
        await self._redis.zadd(keys.pending_samples(POOL), {key: self.now_ms - waited_ms})


@pytest.fixture
async def written(redis_client: Redis) -> Written:
    return Written(redis_client, await server_now_ms(redis_client))


async def test_ages_are_told_by_path_and_class(redis_client: Redis, written: Written) -> None:
    await written.model("a", "someone", 90_000)
    await written.model("b", "vip", 20_000)
    await written.model("c", "someone", 5_000)
    await written.sample("s", "vip", 40_000)
    state = await PoolStateReader(redis_client, class_of).read(POOL)
    ages = {place: round(age, -1) for place, age in state.ages.items()}
    assert ages == {("train", "normal"): 90.0, ("train", "high"): 20.0, ("sample", "high"): 40.0}
    assert state.queued == {"train": 3, "sample": 1}


async def test_a_command_that_runs_does_not_wait(redis_client: Redis, written: Written) -> None:
    await written.model("a", "someone", 90_000)
    await written.request("key-a", "someone", 90_000, "running")
    state = await PoolStateReader(redis_client, class_of).read(POOL)
    assert state.ages == {}


async def test_lag_window_and_replay_are_those_of_the_worst_model(redis_client: Redis, written: Written) -> None:
    redis: Any = redis_client
    await written.model("a", "t", base_pos=10, barrier_pos=14, log_end=19, applied=19, steps_since=3)
    await written.model("b", "t", base_pos=0, barrier_pos=1, log_end=2, applied=2, steps_since=9)
    await written.model("r", "t", phase="replaying", base_pos=5, log_end=25, applied=11)
    slots = {"0": "a", "1": "b", "2": "r", "3": "", "4": "quarantine:x", "5": "unload:y"}
    await redis.hset(keys.slots(POOL), mapping=slots)
    await redis.zadd(keys.recovering(POOL), {"r": written.now_ms - 30_000})
    await redis.zadd(keys.durables(POOL), {"b": 0, "a": written.now_ms + 60_000})
    state = await PoolStateReader(redis_client, class_of).read(POOL)
    assert (state.steps_since, state.window_entries, state.log_entries) == (9, 5, 9)
    assert (state.replayed, state.replay_left) == (6, 14)
    assert round(state.recovering_seconds, -1) == 30.0
    assert state.due_durables == {"b"}
    assert state.slots == {"held": 3, "free": 1, "quarantined": 1, "unloading": 1}


async def test_a_pool_that_never_was_has_zeros(redis_client: Redis) -> None:
    values = values_of(await PoolStateReader(redis_client, class_of).read("nowhere"), 0.0)
    assert {value for by_labels in values.values() for value in by_labels.values()} == {0.0}


async def test_however_much_waits_the_look_is_bounded(redis_client: Redis, written: Written) -> None:
    """Ten times as many models and samples as it looks at."""
    redis: Any = redis_client
    pipe = redis.pipeline(transaction=False)
    for number in range(10 * MODELS):
        pipe.hset(keys.model(POOL, f"m{number}"), mapping={"tenant": "t", "next_seq": "1", "phase": "live"})
        pipe.hset(keys.queue(POOL, f"m{number}"), "1", f"k{number}")
        pipe.zadd(keys.active(POOL), {f"m{number}": number})
    for number in range(10 * SAMPLES):
        pipe.zadd(keys.pending_samples(POOL), {f"s{number}": number})
    await pipe.execute()
    before = int((await redis.info("stats"))["total_commands_processed"])
    state = await PoolStateReader(redis_client, class_of).read(POOL)
    spent = int((await redis.info("stats"))["total_commands_processed"]) - before
    assert spent <= 3 * MODELS + SAMPLES + 40
    assert state.models["ready"] == 10 * MODELS
    assert state.queued["sample"] == 10 * SAMPLES


@pytest.mark.parametrize(
    ("holder", "state"),
    [
        ("", "free"),
        ("session:train:0", "held"),
        ("unload:session:train:0", "unloading"),
        ("quarantine:x", "quarantined"),
    ],
)
def test_slots_are_told_by_who_holds_them(holder: str, state: str) -> None:
    assert slot_state(holder) == state


def test_a_pool_that_is_not_led_any_more_is_not_shown() -> None:
    shelf = PoolShelf()
    shelf.show("p", {"captures": {(): 2.0}}, {"units_total": 5})
    shown = {sample.name: sample.value for family in shelf.collect() for sample in family.samples}
    assert shown == {"tinkermesh_pool_captures": 2.0, **{n: v for n, v in shown.items() if n.endswith("_total")}}
    assert shown["tinkermesh_pool_units_total"] == 5
    shelf.forget("p")
    assert [sample for family in shelf.collect() for sample in family.samples] == []
