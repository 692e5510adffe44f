"""The look for leaks: an empty mesh passes, and everything planted is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from services.scheduler.store import keys
from tests.chaos import leaks
from tests.chaos.history import make
from tests.chaos.player import ModelRun, Run
from tests.doubles.fake_trainer import POOL
from tests.doubles.valkey import ValkeyProcess, valkey, valkey_server  # noqa: F401

MODEL = "s:train:0"
PREFIX = keys.pool_prefix(POOL)


@pytest.fixture
def redis(valkey: ValkeyProcess) -> Redis:  # noqa: F811
    client = Redis(port=valkey.port)
    client.hset(keys.slots(POOL), mapping={"0": "", "1": ""})
    client.hset(keys.model(POOL, MODEL), "state", "closed")
    client.set(f"{PREFIX}:pay:passing:0", b"x", ex=60)
    return client


@pytest.fixture
def run() -> Run:
    made = Run(make(1))
    made.models = [ModelRun(made.history.models[0], model_id=MODEL)]
    return made


def found(redis: Redis, store: Path, run: Run) -> list[str]:
    return list(leaks._found(redis, store, run))


def test_nothing_is_found_where_nothing_leaks(redis: Redis, tmp_path: Path, run: Run) -> None:
    (tmp_path / "runs" / MODEL / "weights" / "_version_a_1").mkdir(parents=True)
    (tmp_path / "runs" / MODEL / "weights" / "a").symlink_to("_version_a_1")
    assert found(redis, tmp_path, run) == []


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (lambda r: r.hset(keys.slots(POOL), "1", MODEL), "slots are held"),
        (lambda r: r.hset(keys.slots(POOL), "1", f"quarantine:{MODEL}"), "slots are held"),
        (lambda r: r.sadd(keys.running_units(POOL), "u"), "running units holds 1"),
        (lambda r: r.sadd(keys.capturing(POOL), "k"), "captured saves holds 1"),
        (lambda r: r.hset(keys.running_samples(POOL), "k", "sampler"), "running samples holds 1"),
        (lambda r: r.set(f"{PREFIX}:pay:left:0", b"x"), "payload tm:{p:double}:pay:left:0 is kept"),
        (lambda r: r.hset(keys.queue(POOL, MODEL), "3", "k"), f"queue of {MODEL} is still there"),
        (lambda r: r.rpush(f"{PREFIX}:log:{MODEL}", "{}"), f"log of {MODEL} is still there"),
        (lambda r: r.hset(keys.model(POOL, MODEL), "state", "open"), "after its session"),
        (lambda r: r.hset(keys.usage(POOL, "t"), "open", 1), "still counts"),
    ],
)
def test_what_stays_in_redis_is_named(
    redis: Redis, tmp_path: Path, run: Run, plant: Callable[[Redis], object], words: str
) -> None:
    plant(redis)
    assert any(words in text for text in found(redis, tmp_path, run)), found(redis, tmp_path, run)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"runs/{MODEL}/weights/_version_a_1/meta.json", "orphan"),
        (f"runs/{MODEL}/weights/_tmp_a_1/meta.json", "residue"),
        (f"durable/{POOL}/{MODEL}/3/state.json", "durable points"),
        ("payloads/double/blob-1", "payload file"),
    ],
)
def test_what_stays_in_the_store_is_named(redis: Redis, tmp_path: Path, run: Run, path: str, words: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text("{}")
    assert any(words in text for text in found(redis, tmp_path, run)), found(redis, tmp_path, run)


def test_rows_that_outlive_the_purge_are_named(redis: Redis) -> None:
    redis.sadd(keys.rows(POOL, MODEL), "k")
    redis.hset(f"tm:{{t:tenant}}:cat:run:{MODEL}", "kept", "by design")
    assert sorted(leaks.purged(redis, [MODEL])) == [keys.model(POOL, MODEL), keys.rows(POOL, MODEL)]
