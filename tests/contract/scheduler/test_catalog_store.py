"""The catalog's functions on a real Valkey: what is listed, what it costs, what a repeat changes."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput, MissingResource, Unavailable
from services.common.tinker_path import TinkerPath
from services.scheduler.store import keys
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import CheckpointEntry, Doomed, RunFacts
from services.scheduler.store.functions import Functions
from tests.doubles.valkey import single_server

TENANT = "tenant"
FACTS = RunFacts("base", types.AdapterLayout(rank=8), '{"a":"b"}', "pool")
FAR_MS = 4_000_000_000_000


@pytest.fixture
def store(redis_client: Redis, functions: Functions) -> CatalogStore:
    return CatalogStore(redis_client, functions)


def entry(run: str, name: str = "ck", kind: str = "weights", *, created: int = 1, ends: int = 0) -> CheckpointEntry:
    path = TinkerPath(run, kind, name)
    return CheckpointEntry(path, f"_version_{name}_1", created, 100, ends, "", False, since_ms=created)


async def listed(store: CatalogStore, run: str = "", tenant: str = TENANT) -> list[str]:
    _, found = await store.checkpoints(tenant, run, 0, 1000)
    return [one.path.checkpoint_id for one in found]


def run_id(number: int = 0) -> str:
    return f"{uuid.UUID(int=number)}:train:0"


async def test_pages_are_newest_first_and_exactly_counted(store: CatalogStore) -> None:
    for number in range(250):
        await store.add_run(TENANT, run_id(number), 1000 + number, FACTS)
    seen = []
    for offset in range(0, 250, 120):
        total, page = await store.runs(TENANT, "", offset, 120)
        assert total == 250
        seen += [run.run_id for run in page]
    assert seen == [run_id(number) for number in reversed(range(250))]
    assert await store.runs(TENANT, "", 250, 10) == (250, [])
    assert await store.runs("another", "", 0, 10) == (0, [])


async def test_a_registration_may_be_repeated_and_keeps_what_its_owner_changed(store: CatalogStore) -> None:
    one = entry(run_id(), ends=FAR_MS)
    await store.add_checkpoint(TENANT, one, FACTS)
    await store.set_public(TENANT, one.path, True)
    await store.set_ttl(TENANT, one.path, None)
    await store.add_checkpoint(TENANT, one, FACTS)
    found = await store.checkpoint(TENANT, one.path)
    assert found == replace(one, public=True, expires_ms=0)
    assert (await store.checkpoints(TENANT, "", 0, 10))[0] == 1
    assert await store.session_sizes(TENANT, [str(uuid.UUID(int=0))]) == [(1, 100)]


async def test_another_version_replaces_the_one_before(store: CatalogStore) -> None:
    first = entry(run_id())
    second = replace(first, version="_version_ck_2", size_bytes=7, expires_ms=FAR_MS, metadata='{"n":"2"}')
    await store.add_checkpoint(TENANT, first, FACTS)
    await store.set_public(TENANT, first.path, True)
    await store.add_checkpoint(TENANT, second, FACTS)
    assert await store.checkpoint(TENANT, first.path) == second
    assert await store.session_sizes(TENANT, [str(uuid.UUID(int=0))]) == [(1, 7)]


async def test_the_newest_of_each_kind_follows_deletions(store: CatalogStore) -> None:
    run = run_id()
    for created, (name, kind) in enumerate([("a", "weights"), ("s", "sampler_weights"), ("b", "weights")], start=1):
        await store.add_checkpoint(TENANT, entry(run, name, kind, created=created), FACTS)
    found = await store.run(TENANT, run)
    assert found is not None and found.last_checkpoint and found.last_sampler_checkpoint
    assert (found.last_checkpoint.path.name, found.last_sampler_checkpoint.path.name) == ("b", "s")
    for name, kind in (("b", "weights"), ("s", "sampler_weights")):
        assert await store.doom(TENANT, TinkerPath(run, kind, name)) == f"_version_{name}_1"
    found = await store.run(TENANT, run)
    assert found is not None and found.last_checkpoint is not None
    assert (found.last_checkpoint.path.name, found.last_sampler_checkpoint) == ("a", None)
    assert await listed(store, run) == ["weights/a"]


async def test_a_doomed_checkpoint_is_missing_until_its_name_is_saved_again(store: CatalogStore) -> None:
    one = entry(run_id())
    await store.add_checkpoint(TENANT, one, FACTS)
    version = await store.doom(TENANT, one.path)
    found = await store.checkpoint(TENANT, one.path)
    assert found is not None and not found.alive()
    for change in (store.set_public(TENANT, one.path, True), store.set_ttl(TENANT, one.path, 5)):
        with pytest.raises(MissingResource):
            await change
    again = replace(one, version="_version_ck_2")
    await store.add_checkpoint(TENANT, again, FACTS)
    await store.forget(TENANT, Doomed(one.path, version))  # of the old one; the new one stays
    assert await store.checkpoint(TENANT, one.path) == again
    assert await listed(store) == ["weights/ck"]


async def test_what_is_past_its_time_leaves_every_list_without_a_sweep(store: CatalogStore) -> None:
    one, other = entry(run_id(), "gone", ends=1), entry(run_id(), "stays", ends=FAR_MS)
    for each in (one, other):
        await store.add_checkpoint(TENANT, each, FACTS)
    assert (await store.checkpoints(TENANT, "", 0, 10))[0] == 1
    assert await listed(store) == ["weights/stays"]


async def test_a_sweep_finds_what_is_due_and_sleeps_until_the_next(store: CatalogStore, redis_client: Redis) -> None:
    for each in (entry(run_id(), "gone", ends=1), entry(run_id(), "stays", ends=FAR_MS)):
        await store.add_checkpoint(TENANT, each, FACTS)
    await store.add_checkpoint("other", entry(run_id(), "stays", ends=FAR_MS), FACTS)
    assert await store.tenants_due(10) == [TENANT]
    doomed, due = await store.due(TENANT, 10)
    assert [(one.path.name, one.version) for one in doomed] == [("gone", "_version_gone_1")] and due == FAR_MS
    await store.rest_until_due(TENANT)
    assert await store.tenants_due(10) == [TENANT], "a version whose files are there is still work"
    await store.forget(TENANT, doomed[0])
    await store.rest_until_due(TENANT)
    assert await store.tenants_due(10) == []
    score = await cast("Any", redis_client).zscore(keys.CATALOG_DUE, TENANT)
    assert score == FAR_MS


@pytest.mark.parametrize("change", ["doom", "ttl"])
async def test_what_a_process_left_when_it_died_is_work_of_the_sweep(store: CatalogStore, change: str) -> None:
    one = entry(run_id())
    await store.add_checkpoint(TENANT, one, FACTS)
    real = store._call

    async def dying(*arguments: Any) -> Any:
        await real(*arguments)
        raise Unavailable("the process is gone")

    store._call = dying
    with pytest.raises(Unavailable):
        await (store.doom(TENANT, one.path) if change == "doom" else store.set_ttl(TENANT, one.path, 0))
    store._call = real
    assert await store.tenants_due(10) == [TENANT]


async def test_a_time_that_is_set_while_the_sweep_goes_to_rest_is_not_lost(store: CatalogStore) -> None:
    one = entry(run_id())
    await store.add_checkpoint(TENANT, one, FACTS)
    await store.set_ttl(TENANT, one.path, 0)
    await store.due(TENANT, 10)
    await store.set_ttl(TENANT, (await _another(store)).path, 0)
    await store.rest_until_due(TENANT)
    assert await store.tenants_due(10) == [TENANT]


async def _another(store: CatalogStore) -> CheckpointEntry:
    another = entry(run_id(), "another")
    await store.add_checkpoint(TENANT, another, FACTS)
    return another


async def test_a_sessions_runs_follow_it_from_project_to_project(store: CatalogStore) -> None:
    session = str(uuid.UUID(int=0))
    await store.add_session(TENANT, session, 5, {"project": "one", "metadata": "", "display_name": ""})
    await store.add_run(TENANT, run_id(), 6, FACTS)
    assert [(await store.runs(TENANT, project, 0, 5))[0] for project in ("one", "two")] == [1, 0]
    await store.assign_project(TENANT, session, "two")
    assert [(await store.runs(TENANT, project, 0, 5))[0] for project in ("one", "two", "")] == [0, 1, 1]
    with pytest.raises(MissingResource):
        await store.assign_project("another", session, "three")
    with pytest.raises(InvalidInput, match="project_id"):
        await store.assign_project(TENANT, session, "")
    assert (await store.runs(TENANT, "two", 0, 5))[0] == 1


async def test_the_first_end_of_a_session_is_remembered(store: CatalogStore) -> None:
    session = str(uuid.uuid4())
    await store.add_session(TENANT, session, 5, {"project": "", "metadata": '{"k":"v"}', "display_name": "n"})
    await store.end_session(TENANT, session, "finished", "success", "d")
    await store.end_session(TENANT, session, "expired", "", "")
    await store.add_session(TENANT, session, 9, {"project": "p"})
    found = await store.session(TENANT, session)
    assert found is not None
    assert (found.status, found.reason, found.detail, found.created_ms, found.project) == (
        "finished",
        "success",
        "d",
        5,
        "",
    )
    assert (found.metadata_value("k"), found.metadata_value("x")) == ("v", None)


async def test_sessions_of_one_millisecond_are_each_seen_once(store: CatalogStore) -> None:
    ids = sorted(str(uuid.UUID(int=number)) for number in range(7))
    for number, session in enumerate(ids):
        await store.add_session(TENANT, session, 10 if number < 5 else 20, {"display_name": ""})
    seen: list[str] = []
    place: tuple[int, str] | None = None
    while batch := await store.sessions_behind(TENANT, place, 2):
        seen += [one.session_id for one in batch]
        place = (batch[-1].created_ms, batch[-1].session_id)
    assert seen == list(reversed(ids))


# ---- cost (must not grow with what is registered) --------------------------------------------


async def commands(redis: Redis, work: Any) -> dict[str, int]:
    """Calls of each Redis command, those inside functions included, while `work` runs."""
    await cast("Any", redis).config_resetstat()
    await work
    stats = await cast("Any", redis).info("commandstats")
    ours = ("hgetall", "hget", "zcard", "zrevrange", "zrange", "zrangebyscore", "hset", "zrem", "sadd", "scan", "keys")
    return {name: stats[f"cmdstat_{name}"]["calls"] for name in ours if f"cmdstat_{name}" in stats}


async def fill(store: CatalogStore, first: int, last: int) -> None:
    runs = [store.add_run(TENANT, run_id(number), number, FACTS) for number in range(first, last)]
    entries = [entry(run_id(n), name, created=n, ends=FAR_MS) for n in range(first, last) for name in ("a", "b")]
    await asyncio.gather(*runs, *(store.add_checkpoint(TENANT, one, FACTS) for one in entries))


@single_server
async def test_a_page_a_look_and_a_sweep_cost_the_same_whatever_is_registered(
    store: CatalogStore, redis_client: Redis
) -> None:
    costs = []
    for first, last in ((0, 50), (50, 350)):
        await fill(store, first, last)
        due = entry(run_id(last - 1), f"due{last}", ends=1)
        await store.add_checkpoint(TENANT, due, FACTS)
        costs.append(
            {
                "sweep": await commands(redis_client, store.due(TENANT, 10)),
                "first page": await commands(redis_client, store.checkpoints(TENANT, "", 0, 20)),
                "last page": await commands(redis_client, store.checkpoints(TENANT, "", 2 * last - 20, 20)),
                "runs": await commands(redis_client, store.runs(TENANT, "", last // 2, 20)),
                "one run": await commands(redis_client, store.run(TENANT, run_id(7))),
            }
        )
        for doomed in (await store.due(TENANT, 10))[0]:
            await store.forget(TENANT, doomed)
    assert costs[0] == costs[1]
    assert costs[0]["first page"]["hgetall"] == 20 and costs[0]["first page"]["zcard"] == 1
    assert not {"scan", "keys"} & set(costs[0]["runs"])
