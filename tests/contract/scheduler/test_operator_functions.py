"""What operators change by hand keeps exactly-once: the functions called directly, on states a mesh heals by itself."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from services.common.errors import InUse, StaleFence, UnknownId
from services.common.ids import RequestId
from services.scheduler.core.view import Clock
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.operations import OperatorStore
from services.scheduler.store.training import Settlement
from tests.contract.scheduler.test_training_functions import MODEL, POOL, Bench, bench, item

__all__ = ["bench"]


@pytest.fixture
def operator(functions: Functions) -> OperatorStore:
    return OperatorStore(functions, retention_ms=60_000, valid_ms=10_000)


def named(key: str) -> RequestId:
    return RequestId(POOL, key, 0)


async def flying(bench: Bench) -> None:
    assert await bench.issue("u1", item("b", 0, 3))


async def lose_the_mark(bench: Bench) -> None:
    """The set of running units forgets one, as a damaged Redis may; then the trainer is replaced."""
    await flying(bench)
    await bench.redis.srem(keys.running_units(POOL), "u1")
    await bench.store.adopt(POOL, bench.term, "next life", 1)
    assert await bench.field("b", "state") == "running"  # nobody took it back: it would wait for ever


async def test_what_runs_under_the_live_fence_is_left_alone_FUT_01(bench: Bench, operator: OperatorStore) -> None:
    await flying(bench)
    with pytest.raises(InUse, match="live fence of term 1 and incarnation life"):
        await operator.requeue(named("b"))
    assert await bench.field("b", "state") == "running"
    assert await bench.settle("u1", Settlement("part", b"x"))
    assert await bench.field("b", "state") == "done"


async def test_another_term_does_not_end_the_fence_of_the_same_trainer(bench: Bench, operator: OperatorStore) -> None:
    await flying(bench)
    await bench.redis.hset(keys.lease(POOL), "term", "7")
    with pytest.raises(InUse, match="term 7"):
        await operator.requeue(named("b"))


async def test_what_a_replaced_trainer_was_given_waits_again_and_its_late_outcome_is_nothing_ORD_08(
    bench: Bench, operator: OperatorStore
) -> None:
    await lose_the_mark(bench)
    assert await operator.requeue(named("b")) == 1
    assert [await bench.field("b", name) for name in ("state", "issued", "flying")] == ["queued", "0", "0"]
    assert "put back by an operator" in await bench.field("b", "events")
    assert not await bench.settle("u1", Settlement("part", b"late"))
    assert await bench.field("b", "state") == "queued"
    assert await bench.redis.hget(keys.model(POOL, MODEL), "inflight") == b"0"
    with pytest.raises(InUse, match="waits already"):
        await operator.requeue(named("b"))


async def test_datums_issued_later_are_not_taken_back_with_earlier_ones(bench: Bench, operator: OperatorStore) -> None:
    assert await bench.issue("u1", item("b", 0, 2))
    await bench.redis.hset(keys.unit(POOL, "u1"), "incarnation", "former")
    assert await bench.issue("u2", item("b", 2, 1))
    with pytest.raises(InUse, match="close the model instead"):
        await operator.requeue(named("b"))
    assert await bench.field("b", "issued") == "3"


async def test_a_unit_nobody_recorded_may_have_taken_effect_and_stays(bench: Bench, operator: OperatorStore) -> None:
    await flying(bench)
    await bench.redis.delete(keys.unit(POOL, "u1"))
    with pytest.raises(InUse, match="cannot be known"):
        await operator.requeue(named("b"))
    assert await bench.field("b", "state") == "running"


@pytest.mark.parametrize(
    ("state", "words"),
    [("queued", "waits already"), ("captured", "published"), ("done", "settled"), ("failed", "settled")],
)
async def test_only_what_runs_is_put_back(bench: Bench, operator: OperatorStore, state: str, words: str) -> None:
    await bench.redis.hset(keys.req(POOL, "b"), "state", state)
    with pytest.raises(InUse, match=words):
        await operator.requeue(named("b"))
    assert await bench.field("b", "state") == state


async def test_nobody_is_put_back_under_a_wrong_name(bench: Bench, operator: OperatorStore) -> None:
    for request in (named("nobody"), RequestId(POOL, "b", 3)):
        with pytest.raises(UnknownId):
            await operator.requeue(request)


async def test_a_model_under_a_unit_keeps_its_slot(bench: Bench, operator: OperatorStore) -> None:
    await flying(bench)
    with pytest.raises(InUse, match="a unit runs on slot 0"):
        await operator.unseat(POOL, MODEL)
    assert await bench.redis.hget(keys.slots(POOL), "0") == MODEL.encode()


async def test_a_model_leaves_its_slot_and_no_unit_is_issued_to_it_before_it_is_back(
    bench: Bench, operator: OperatorStore
) -> None:
    await operator.unseat(POOL, MODEL)
    assert await bench.redis.hget(keys.slots(POOL), "0") == f"unload:{MODEL}".encode()
    assert not await bench.issue("u1", item("b", 0, 3))
    assert await bench.redis.zscore(keys.seekers(POOL), MODEL) is not None  # it has work: it asks for a slot
    with pytest.raises(InUse, match="holds no slot"):
        await operator.unseat(POOL, MODEL)


async def test_a_durable_point_under_way_holds_the_slot(bench: Bench, operator: OperatorStore) -> None:
    await bench.redis.hset(keys.durables_running(POOL), MODEL, "u9")
    with pytest.raises(InUse, match="durable point"):
        await operator.unseat(POOL, MODEL)


async def test_a_close_under_a_running_unit_completes_when_that_settles_LEASE_05(
    bench: Bench, operator: OperatorStore
) -> None:
    await flying(bench)
    assert await operator.close(POOL, MODEL, "closed by the operator: why") == "closing"
    with pytest.raises(InUse, match="being closed already"):
        await operator.close(POOL, MODEL, "again")
    assert await bench.settle("u1", Settlement("part", b"x"))
    assert [await bench.field(key, "state") for key in ("b", "o")] == ["done", "failed"]
    assert b"closed by the operator: why; no checkpoint" in (await bench.redis.hget(keys.model(POOL, MODEL), "reason"))


async def test_a_stale_leader_cannot_undo_what_an_operator_did(bench: Bench, operator: OperatorStore) -> None:
    await operator.unseat(POOL, MODEL)
    await bench.redis.hset(keys.lease(POOL), "term", "2")
    with pytest.raises(StaleFence):
        await bench.store.issue(POOL, 1, "u1", "life", b"work", [item("b", 0, 3)], Clock())


async def test_a_running_sample_is_put_back_only_when_its_sampler_is_lost(
    redis_client: Redis, functions: Functions, operator: OperatorStore
) -> None:
    row = keys.req(POOL, "s")
    fields = {"request_id": f"{POOL}.s.0", "kind": "sample", "state": "running", "issued_ms": "1000", "arrival": "5"}
    await redis_client.hset(row, mapping=fields)
    await redis_client.hset(keys.running_samples(POOL), "s", "one")
    await functions.call("registry_renew", [keys.pool_prefix(POOL)], "samplers", "one", "life", "{}", "sample")
    await redis_client.hset(row, "issued_ms", "9000000000000")  # after that life began
    with pytest.raises(InUse, match="sampler one, which is alive"):
        await operator.requeue(named("s"))
    await redis_client.hset(row, "issued_ms", "1000")  # to an earlier life of it
    assert await operator.requeue(named("s")) == 1
    assert await redis_client.hget(row, "state") == b"queued"
    assert await redis_client.zscore(keys.pending_samples(POOL), "s") == 5
    assert not await redis_client.hexists(keys.running_samples(POOL), "s")
