"""The guards of each transition, called directly: what does not fit writes nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import ContractViolation, StaleFence
from services.scheduler.core.view import Clock
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.leases import LeaseStore
from services.scheduler.store.training import NewModel, Settlement, Submission, TrainingStore, UnitItem

POOL, MODEL, SESSION = "p", "s:train:0", "s"


def submission(key: str, seq: str, op: str = "forward_backward", datums: int = 3) -> Submission:
    return Submission(key, "f", "tenant", SESSION, MODEL, seq, op, b"", datums=datums, tokens=9)


def item(key: str, first: int, count: int, op: str = "forward_backward") -> UnitItem:
    return UnitItem(m=MODEL, s=0, o=op, k=key, f=first, n=count)


BASE = b'{"kind": "init", "key": "c"}'


class Bench:
    """One open model in slot 0 with a batch of three datums (key b) and a step (key o) queued."""

    def __init__(self, redis: Redis, functions: Functions) -> None:
        self.redis = cast("Any", redis)
        self.store = TrainingStore(functions, 60_000)
        self._leases = LeaseStore(functions)
        self.term = 0

    async def prepare(self) -> None:
        self.term = (await self._leases.acquire(POOL, "replica", 60_000)).term
        await self.store.adopt(POOL, self.term, "life", 1)
        await self.store.create(POOL, submission("c", "0", "create", 1), NewModel("base", b"", ""))
        create = UnitItem(m=MODEL, s=0, o="create", k="c", c=1)
        await self.issue("u-create", create)
        await self.settle("u-create", Settlement("loaded", b"result", "1", b"", BASE))
        await self.store.submit(POOL, submission("b", "1"))
        await self.store.submit(POOL, submission("o", "2", "optim_step", 1))

    async def issue(self, unit: str, *items: UnitItem, term: int | None = None) -> bool:
        return await self.store.issue(POOL, term or self.term, unit, "life", b"work", items, Clock())

    async def settle(self, unit: str, *settlements: Settlement, term: int | None = None) -> bool:
        return await self.store.settle(POOL, term or self.term, unit, settlements)

    async def field(self, key: str, name: str) -> str:
        return ((await self.redis.hget(keys.req(POOL, key), name)) or b"").decode()


@pytest.fixture
async def bench(redis_client: Redis, functions: Functions) -> Bench:
    made = Bench(redis_client, functions)
    await made.prepare()
    return made


async def test_a_datum_is_issued_once_ORD_08(bench: Bench) -> None:
    assert await bench.issue("u1", item("b", 0, 2))
    assert not await bench.issue("u2", item("b", 0, 2))
    assert not await bench.issue("u2", item("b", 1, 2))
    assert not await bench.issue("u2", item("b", 2, 2))
    assert await bench.issue("u3", item("b", 2, 1))
    assert not await bench.redis.exists(keys.unit(POOL, "u2"))


async def test_issuing_the_same_unit_again_changes_nothing(bench: Bench) -> None:
    assert await bench.issue("u1", item("b", 0, 2))
    assert await bench.issue("u1", item("b", 0, 2))
    assert await bench.field("b", "issued") == "2"


async def test_a_unit_with_one_stale_item_is_not_written_at_all(bench: Bench) -> None:
    assert not await bench.issue("u1", item("b", 0, 3), item("missing", 0, 1))
    assert await bench.field("b", "issued") == "0"


async def test_a_unit_settles_once_FUT_01(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 3))
    assert await bench.settle("u1", Settlement("part", b"first"))
    assert not await bench.settle("u1", Settlement("fail", b"later", "2", b"model"))
    assert await bench.field("b", "state") == "done"


async def test_a_settlement_that_does_not_fit_its_unit_writes_nothing_FAIL_08(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 3))
    with pytest.raises(ContractViolation, match="1 items, 2 were settled"):
        await bench.settle("u1", Settlement("part"), Settlement("part"))
    with pytest.raises(ContractViolation, match="unknown action"):
        await bench.settle("u1", Settlement("celebrate"))
    assert await bench.field("b", "state") == "running"
    assert await bench.settle("u1", Settlement("part", b"x"))


async def test_a_former_term_writes_nothing_GAP_03(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 3))
    old, bench.term = bench.term, 0
    await bench.redis.hset(keys.lease(POOL), "expires_ms", 0)
    functions = Functions(bench.redis)
    bench.term = (await LeaseStore(functions).acquire(POOL, "other", 60_000)).term
    for call in (
        bench.issue("u9", item("o", 0, 1, "optim_step"), term=old),
        bench.settle("u1", Settlement("part"), term=old),
        bench.store.refuse(POOL, old, "o", "no"),
        bench.store.snapshot_name(POOL, old, MODEL, "", "b"),
        bench.store.artifact_failed(POOL, old, "b", 2, "no"),
        bench.store.expire_gaps(POOL, old, 0),
        bench.store.repair(POOL, old),
        bench.store.reset_clock(POOL, old),
    ):
        with pytest.raises(StaleFence):
            await call
    assert await bench.settle("u1", Settlement("part", b"x"))


async def test_what_a_lease_expiry_failed_stays_failed_when_the_result_comes_FUT_01(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 1))
    await bench.store.close_session(POOL, SESSION, 1, "lease expired", settle=False)
    assert await bench.field("o", "state") == "queued"  # the running unit is waited for
    await bench.settle("u1", Settlement("part", b"x"))
    assert await bench.field("b", "state") == "failed"
    assert await bench.field("o", "state") == "failed"
    failure = types.Result.FromString(await bench.redis.hget(keys.req(POOL, "b"), "result")).failure
    assert failure == types.Failure(category=types.FAILURE_CATEGORY_USER, message="lease expired")


async def test_work_of_a_doomed_model_is_not_issued_LEASE_05(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 1))
    await bench.store.close_session(POOL, SESSION, 1, "lease expired", settle=False)
    assert not await bench.issue("u2", item("b", 1, 1))


async def test_retention_starts_at_settlement_and_pending_futures_never_expire_FUT_04(bench: Bench) -> None:
    assert await bench.field("b", "expires_ms") == ""
    await bench.issue("u1", item("b", 0, 3))
    await bench.settle("u1", Settlement("part", b"x"))
    settled, expires = int(await bench.field("b", "settled_ms")), int(await bench.field("b", "expires_ms"))
    assert expires == settled + 60_000


async def test_a_settled_batch_drops_its_payload_and_command(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 3))
    await bench.settle("u1", Settlement("part", b"12345"))
    assert await bench.field("b", "command") == ""
    assert await bench.field("b", "result_bytes") == "5"
    assert await bench.redis.hgetall(keys.outputs(POOL, "b")) == {b"0": b"12345"}


async def test_every_key_a_function_writes_is_one_the_book_of_keys_names(bench: Bench) -> None:
    await bench.issue("u1", item("b", 0, 2))
    await bench.settle("u1", Settlement("part", b"x", log=b'[{"f": 0, "n": 2, "b": 8}]'))
    named = {
        keys.log(POOL, MODEL),
        keys.lease(POOL),
        keys.arrival(POOL),
        keys.active(POOL),
        keys.slots(POOL),
        keys.cell(POOL),
        keys.served(POOL),
        keys.counters(POOL),
        keys.expiring(POOL),
        keys.model(POOL, MODEL),
        keys.queue(POOL, MODEL),
        keys.rows(POOL, MODEL),
        keys.pool_session_models(POOL, SESSION),
        keys.usage(POOL, "tenant"),
        keys.outputs(POOL, "b"),
        *(keys.req(POOL, key) for key in "cbo"),
        *(keys.unit(POOL, unit) for unit in ("u-create", "u1")),
    }
    found = {key.decode() for key in await bench.redis.keys("*")}
    assert found == named
