"""The samples of one pool in the hands of the lease holder."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Unavailable
from services.scheduler.sampling.flight import Flight
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.link_load import LinkLoad
from services.scheduler.sampling.pool_run import PoolRun
from services.scheduler.sampling.routing import Router
from services.scheduler.sampling.spot import Spot
from services.scheduler.sampling.waiting import Waiting
from services.scheduler.store.sampling import WaitingSample


class NoRedis:
    async def start(self, pool: str, term: int, placements: list[tuple[str, str]]) -> list[None]:
        raise Unavailable("Redis is away")


class Link:
    sampler_id = "one"

    def __init__(self) -> None:
        self.load_now = LinkLoad()


def sample(arrival: int) -> Waiting:
    return Waiting(WaitingSample(f"key-{arrival}", arrival, f"p.{arrival}.0", "tenant", None, "", 0, 1), 0.0)


async def test_what_could_not_be_sent_out_waits_again_in_its_old_order() -> None:
    run = PoolRun("p", 1, cast("Any", NoRedis()), cast("Any", None), SamplingLimits(), Router(), asyncio.Event())
    link = cast("Any", Link())
    batch = [sample(1), sample(2), sample(3)]
    flights = [Flight(Spot(link), 1) for _ in batch]
    assert link.load_now.in_flight == 3
    with pytest.raises(Unavailable):
        await run._start(list(zip(batch, flights, strict=True)))
    assert run._turns.all() == batch
    assert link.load_now.in_flight == 0


class Store:
    def __init__(self) -> None:
        self.settled: list[types.Result] = []

    async def settle(self, pool: str, key: str, result: types.Result, *_: object) -> tuple[bool, str]:
        self.settled.append(result)
        return True, ""


class BrokenLink(Link):
    incarnation = "one"

    async def sample(self, request: object, seconds: float) -> types.SampleResult:
        raise RuntimeError("a bug")

    def forget(self, adapter: str) -> None:
        return


async def test_a_bug_met_on_the_way_fails_the_sample_instead_of_leaving_it_pending() -> None:
    store = Store()
    run = PoolRun("p", 1, cast("Any", store), cast("Any", None), SamplingLimits(), Router(), asyncio.Event())
    run._spawn(sample(1), Flight(Spot(cast("Any", BrokenLink())), 1), types.SampleBody(num_samples=1))
    async with asyncio.timeout(5):
        while run._tasks:
            await asyncio.sleep(0)
    (result,) = store.settled
    assert result.failure.category == types.FAILURE_CATEGORY_SERVER
    assert "a bug" not in result.failure.message
    assert run._held == set()


class Fleet:
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


class IdleLink(BrokenLink):
    async def abort(self, request_id: str) -> None:
        return


async def test_a_sample_cancelled_before_its_call_began_gives_its_capacity_back() -> None:
    run = PoolRun("p", 1, cast("Any", Store()), cast("Any", Fleet()), SamplingLimits(), Router(), asyncio.Event())
    link, waiting = cast("Any", IdleLink()), sample(1)
    run._spawn(waiting, Flight(Spot(link), 1), types.SampleBody(num_samples=1))
    run.settled([waiting.sample.request_id])
    async with asyncio.timeout(5):
        while run._tasks:
            await asyncio.sleep(0)
    assert link.load_now.in_flight == 0
