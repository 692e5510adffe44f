"""The samples of one pool in the hands of the lease holder."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from services.common.errors import Unavailable
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.pool_run import PoolRun
from services.scheduler.sampling.waiting import Waiting
from services.scheduler.store.sampling import WaitingSample


class NoRedis:
    async def start(self, pool: str, term: int, placements: list[tuple[str, str]]) -> list[None]:
        raise Unavailable("Redis is away")


class Link:
    sampler_id = "one"
    in_flight = 0


def sample(arrival: int) -> Waiting:
    return Waiting(WaitingSample(f"key-{arrival}", arrival, f"p.{arrival}.0", "tenant", None, "", 0, 1), 0.0)


async def test_what_could_not_be_sent_out_waits_again_in_its_old_order() -> None:
    run = PoolRun("p", 1, cast("Any", NoRedis()), cast("Any", None), SamplingLimits(), asyncio.Event())
    link = cast("Any", Link())
    batch = [sample(1), sample(2), sample(3)]
    link.in_flight = len(batch)
    with pytest.raises(Unavailable):
        await run._start([(waiting, link) for waiting in batch])
    assert run._turns.all() == batch
    assert link.in_flight == 0
