"""Every class of damage, planted by hand: the check finds it, repairs or reports it, and finds nothing afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store import consistency, keys
from services.scheduler.store.consistency import ConsistencyCheck, Finding
from services.scheduler.store.functions import Functions
from services.scheduler.store.payloads import FileBlobs, Pending, Upload
from services.scheduler.store.sampling import SampleToAdmit, SamplingSession, SamplingStore
from services.scheduler.store.sequences import SequenceStore
from services.scheduler.store.sessions import SessionStore
from services.scheduler.store.training import NewModel, Settlement, Submission, UnitItem
from tests.contract.scheduler.test_training_functions import BASE, MODEL, POOL, SESSION, Bench, item, submission

SAMPLER = f"{SESSION}:sample:0:{POOL}"
LIMITS = "limits 0 0 0 0 0 0"
DAY_MS = 86_400_000
RETENTION_MS = 7_000


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


class Site:
    """Bench's model with a batch (b, with a payload), a step (o); a settled batch (d); a sample (x) that waits."""

    def __init__(self, redis: Redis, functions: Functions, blobs: FileBlobs) -> None:
        self.redis = cast("Any", redis)
        self.bench = Bench(redis, functions)
        self.check = ConsistencyCheck(redis, functions, blobs, retention_ms=RETENTION_MS)
        self.functions = functions
        self.samples = SamplingStore(redis, functions, SequenceStore(redis, functions, keep_ms=DAY_MS))
        self.sessions = SessionStore(redis, functions)
        self.blobs = blobs

    async def prepare(self) -> None:
        bench, store = self.bench, self.bench.store
        bench.term = (await bench._leases.acquire(POOL, "replica", 60_000)).term
        await store.adopt(POOL, bench.term, "life", 2)
        await store.create(POOL, submission("c", "0", "create", 1), NewModel("base", b"", ""))
        await bench.issue("u-create", UnitItem(m=MODEL, s=0, o="create", k="c", c=1))
        await bench.settle("u-create", Settlement("loaded", b"result", "1", b"", BASE))
        await store.submit(POOL, submission("d", "1"))
        await bench.issue("u-done", item("d", 0, 3))
        await bench.settle("u-done", Settlement("part", b"numbers"))
        await store.submit(POOL, self.with_payload("b", "2"))
        await store.submit(POOL, submission("o", "3", "optim_step", 1))
        await self.samples.open(POOL, SamplingSession(SAMPLER, "tenant", SESSION, "base", "", "", ""))
        await self.samples.admit(POOL, sample("x", 1), 10, DAY_MS)
        await self.sessions.create(SESSION, "tenant", {})

    def with_payload(self, key: str, seq: str) -> Submission:
        pending = Pending(Upload(f"up-{key}", 1), {keys.payload(POOL, f"up-{key}", 0): b"tokens"})
        return replace(submission(key, seq), payload=pending, payload_bytes=6)

    async def run(self, *, alone: bool = False) -> list[Finding]:
        return [*await self.check.pool(POOL, alone=yes if alone else no), *await self.check.sessions()]

    async def kinds(self, *, alone: bool = False) -> set[str]:
        return {finding.kind for finding in await self.run(alone=alone)}

    async def row(self, key: str, field: str) -> str:
        return ((await self.redis.hget(keys.req(POOL, key), field)) or b"").decode()

    async def failure(self, key: str) -> str:
        data = await self.redis.hget(keys.req(POOL, key), "result")
        return types.Result.FromString(data).failure.message


def sample(key: str, seq: int) -> SampleToAdmit:
    return SampleToAdmit(SAMPLER, key, "tenant", "f", seq, "s0", b"command", "", b"", LIMITS)


@pytest.fixture
async def site(redis_client: Redis, functions: Functions, tmp_path: Path) -> Site:
    made = Site(redis_client, functions, FileBlobs(tmp_path))
    await made.prepare()
    return made


async def test_a_sound_store_has_nothing_to_repair(site: Site) -> None:
    before = await dump(site)
    assert await site.run(alone=True) == []
    assert await dump(site) == before


async def dump(site: Site) -> dict[bytes, bytes]:
    return {name: await site.redis.dump(name) for name in await site.redis.keys("*")}


Damage = Callable[[Site], Awaitable[Any]]
PLANTED: dict[str, Damage] = {
    "queued_without_row": lambda s: s.redis.hset(keys.queue(POOL, MODEL), "9", "nothing"),
    "row_not_queued": lambda s: s.redis.hdel(keys.queue(POOL, MODEL), "2"),
    "row_without_id": lambda s: s.redis.hset(keys.req(POOL, "stray"), "flying", "-1"),
    "row_without_model": lambda s: s.redis.hset(keys.req(POOL, "o"), "parent", "s:train:9"),
    "payload_lost": lambda s: s.redis.delete(keys.payload(POOL, "up-b", 0)),
    "payload_with_ttl": lambda s: s.redis.expire(keys.payload(POOL, "up-b", 0), 500),
    "payload_without_row": lambda s: s.redis.set(keys.payload(POOL, "stray", 0), b"x"),
    "output_without_row": lambda s: s.redis.hset(keys.outputs(POOL, "stray"), "0", b"x"),
    "result_lost": lambda s: s.redis.delete(keys.outputs(POOL, "d")),
    "result_without_end": lambda s: s.redis.zrem(keys.expiring(POOL), "d"),
    "settled_but_charged": lambda s: s.redis.hset(keys.req(POOL, "d"), "charged", "5"),
    "running_without_unit": lambda s: s.redis.hset(
        keys.req(POOL, "b"), mapping={"state": "running", "flying": "1", "units": "gone"}
    ),
    "unit_without_record": lambda s: s.redis.sadd(keys.running_units(POOL), "gone"),
    "unit_not_listed": lambda s: s.redis.hset(keys.unit(POOL, "u"), mapping={"state": "running", "items": "[]"}),
    "slot_without_model": lambda s: s.redis.hset(keys.slots(POOL), "1", "s:train:8"),
    "model_not_active": lambda s: s.redis.zrem(keys.active(POOL), MODEL),
    "sample_not_queued": lambda s: s.redis.zrem(keys.pending_samples(POOL), "x"),
    "sample_not_listed": lambda s: s.redis.srem(keys.open_samples(POOL, SAMPLER), "x"),
    "index_without_row": lambda s: s.redis.zadd(keys.expiring(POOL), {"stray": 1}),
    "session_not_listed": lambda s: s.redis.zrem(keys.SESSIONS, SESSION),
    "usage_wrong": lambda s: s.redis.hincrby(keys.usage(POOL, "tenant"), "open", 7),
}


@pytest.mark.parametrize("kind", PLANTED)
async def test_each_class_of_damage_is_found_and_gone_afterwards_GAP_16(site: Site, kind: str) -> None:
    await PLANTED[kind](site)
    assert kind in await site.kinds(alone=True)
    assert await site.run(alone=True) == []


async def test_a_command_outside_its_queue_runs_in_its_place(site: Site) -> None:
    await site.redis.hdel(keys.queue(POOL, MODEL), "2")
    await site.run()
    assert await site.redis.hget(keys.queue(POOL, MODEL), "2") == b"b"
    assert await site.bench.issue("u", item("b", 0, 3))


async def test_a_command_whose_place_has_passed_fails(site: Site) -> None:
    await site.redis.hset(keys.model(POOL, MODEL), "next_seq", "3")
    await site.redis.hdel(keys.queue(POOL, MODEL), "2")
    await site.run()
    assert await site.row("b", "state") == "failed"
    assert "lost its place" in await site.failure("b")


async def test_a_lost_payload_fails_its_command_in_its_turn_and_the_model_goes_on(site: Site) -> None:
    await site.redis.delete(keys.payload(POOL, "up-b", 0))
    await site.run()
    assert "lost by the store" in await site.failure("b")
    step = UnitItem(m=MODEL, s=0, o="optim_step", k="o", f=0, n=1)
    assert await site.bench.issue("u", step)


async def test_a_lost_payload_file_is_found_too(site: Site, tmp_path: Path) -> None:
    name = f"blob-{POOL}.b.1"
    await site.blobs.put(name, b"tokens")
    await site.redis.hset(keys.req(POOL, "b"), "upload", name)
    assert await site.kinds() == {"payload_without_row"}  # the segment it had before
    await site.blobs.delete(name)
    assert await site.kinds() == {"payload_lost"}
    assert "lost by the store" in await site.failure("b")


async def test_a_lost_record_of_a_running_unit_closes_its_model_naming_the_checkpoint(site: Site) -> None:
    await site.redis.hset(keys.model(POOL, MODEL), "last_checkpoint", "tinker://s:train:0/weights/a")
    await site.bench.issue("u", item("b", 0, 3))
    await site.redis.delete(keys.unit(POOL, "u"))
    assert await site.kinds() >= {"running_without_unit", "unit_without_record"}
    assert await site.redis.hget(keys.model(POOL, MODEL), "state") == b"closed"
    assert "restore from tinker://s:train:0/weights/a" in await site.failure("b")


async def test_a_unit_that_names_a_lost_command_is_reported_only(site: Site) -> None:
    await site.bench.issue("u", item("b", 0, 3))
    await site.redis.delete(keys.req(POOL, "b"))
    assert "unit_without_row" in await site.kinds()
    assert await site.redis.sismember(keys.running_units(POOL), "u")


async def test_a_lost_result_is_told_and_not_executed_again(site: Site) -> None:
    await site.redis.delete(keys.outputs(POOL, "d"))
    await site.run()
    assert await site.row("d", "state") == "failed"
    assert "executed, but its result was lost" in await site.failure("d")


async def test_a_create_that_waits_nowhere_waits_again(site: Site) -> None:
    second = replace(submission("c2", "0", "create", 1), model_id="s:train:1")
    await site.bench.store.create(POOL, second, NewModel("base", b"", ""))
    await site.redis.zrem(keys.creates(POOL), "s:train:1")
    assert await site.kinds() == {"create_not_queued"}
    assert await site.redis.zscore(keys.creates(POOL), "s:train:1") is not None


async def test_leftovers_of_a_closed_model_go(site: Site) -> None:
    await site.redis.hset(keys.model(POOL, MODEL), "state", "closed")
    assert await site.kinds() >= {"row_of_closed_model", "index_of_closed_model", "slot_without_model"}
    assert await site.row("b", "state") == await site.row("o", "state") == "failed"
    assert await site.redis.hget(keys.slots(POOL), "0") == f"unload:{MODEL}".encode()


async def test_what_a_replay_would_miss_is_reported_only(site: Site) -> None:
    log = b'[{"f": 0, "n": 3, "b": 6}]'
    await site.bench.issue("u", item("b", 0, 3))
    await site.bench.settle("u", Settlement("part", b"numbers", log=log))
    assert await site.run() == []
    await site.redis.delete(keys.payload(POOL, "up-b", 0))
    assert await site.kinds() == {"logged_payload_lost"}
    await site.redis.delete(keys.req(POOL, "b"))
    assert "log_without_row" in await site.kinds()
    assert await site.redis.hget(keys.model(POOL, MODEL), "state") == b"open"


async def log_with_gaps(site: Site, entries: int, *gaps: int) -> None:
    """The model's log begins at position 100; the commands at these places of it do not exist."""
    names = [f"gone-{place}" if place in gaps else "d" for place in range(entries)]
    await site.redis.rpush(
        keys.log(POOL, MODEL), *(msgspec.json.encode({"o": "optim_step", "k": name}) for name in names)
    )
    await site.redis.hset(keys.model(POOL, MODEL), mapping={"base_pos": "100", "log_end": str(100 + entries)})


async def test_a_long_log_is_looked_at_in_portions_to_its_end_GAP_16(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "BATCH", 4)
    await log_with_gaps(site, 12, 0, 3, 4, 11)
    asked, call = [], site.functions.call

    async def noted(name: str, names: Sequence[str], *arguments: Any) -> Any:
        answer = await call(name, names, *arguments)
        if name == "check_log":
            asked.append((*arguments[2:], answer[0].decode()))
        return answer

    monkeypatch.setattr(site.check, "_call", noted)
    found = [one for one in await site.run() if one.kind == "log_without_row"]
    assert found == [Finding("log_without_row", f"{MODEL} gone-{place}") for place in (0, 3, 4, 11)]
    assert asked == [("", "4", "104"), ("104", "4", "108"), ("108", "4", "112"), ("112", "4", "")]


async def test_what_leaves_a_log_while_it_is_looked_at_is_passed_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A durable point that comes between two portions moves the log's beginning, not what is still to be seen."""
    monkeypatch.setattr(consistency, "BATCH", 4)
    await log_with_gaps(site, 10, 9)
    call, between = site.functions.call, iter([True])

    async def trimmed_after_the_first(name: str, names: Sequence[str], *arguments: Any) -> Any:
        answer = await call(name, names, *arguments)
        if name == "check_log" and next(between, False):
            await site.redis.ltrim(keys.log(POOL, MODEL), 8, -1)
            await site.redis.hset(keys.model(POOL, MODEL), "base_pos", "108")
        return answer

    monkeypatch.setattr(site.check, "_call", trimmed_after_the_first)
    assert Finding("log_without_row", f"{MODEL} gone-9") in await site.run()


async def test_what_the_check_fails_is_kept_as_long_as_any_result(site: Site) -> None:
    await site.redis.delete(keys.payload(POOL, "up-b", 0))
    await site.run()
    assert int(await site.row("b", "expires_ms")) - int(await site.row("b", "settled_ms")) == RETENTION_MS


@pytest.mark.parametrize("index", [keys.seekers, keys.recovering, keys.unseated, keys.durables])
async def test_recovery_forgets_models_that_are_closed_or_gone(site: Site, index: Callable[[str], str]) -> None:
    await site.redis.hset(keys.model(POOL, "s:train:7"), "state", "closed")
    await site.redis.zadd(index(POOL), {"s:train:7": 1, "s:train:8": 1})
    found = await site.run()
    name = index(POOL).rpartition(":")[2]
    assert Finding("index_of_closed_model", "s:train:7") in found
    assert Finding("index_without_row", f"{name} s:train:8") in found
    assert not await site.redis.exists(index(POOL))


async def test_usage_is_counted_only_by_who_is_alone(site: Site) -> None:
    await site.redis.hincrby(keys.usage(POOL, "tenant"), "bytes", 1000)
    assert await site.run(alone=False) == []
    (found,) = await site.run(alone=True)
    assert found == Finding("usage_wrong", "tenant bytes 1013 instead of 13")


async def test_a_key_that_redis_names_twice_counts_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = site.check._names

    async def twice(pool: str, rest: str) -> AsyncIterator[list[str]]:
        async for names in real(pool, rest):
            yield names
            yield names

    monkeypatch.setattr(site.check, "_names", twice)
    assert await site.run(alone=True) == []


async def test_usage_is_left_alone_when_another_replica_came_during_the_count(site: Site) -> None:
    counted = site.check._rows

    async def and_somebody_comes(*arguments: Any) -> list[Finding]:
        nonlocal alone
        alone = no
        return await counted(*arguments)

    alone = yes
    site.check._rows = and_somebody_comes  # type: ignore[method-assign]
    await site.redis.hincrby(keys.usage(POOL, "tenant"), "open", 7)
    assert await site.check.pool(POOL, alone=lambda: alone()) == []
