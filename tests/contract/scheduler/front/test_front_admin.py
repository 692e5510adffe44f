"""The lists an operator looks at."""

from __future__ import annotations

from tinkermesh.v1 import admin_pb2 as pb

from tests.contract.scheduler.front.conftest import StartSampler
from tests.contract.scheduler.front.mesh import Replica, base_sampler, sample_request, session


async def test_futures_are_listed_the_oldest_first(replica: Replica, start_sampler: StartSampler) -> None:
    double = await start_sampler()
    double.faults.add("hold_before", "sample", times=0)
    sampler = await base_sampler(replica, await session(replica))
    submitted = [(await replica.scheduler.Submit(sample_request(sampler, seq))).request_id for seq in range(12)]
    reply = await replica.admin.ListFutures(pb.ListFuturesRequest())
    assert [future.request_id for future in reply.futures] == submitted
    reply = await replica.admin.ListFutures(pb.ListFuturesRequest(limit=5))
    assert [future.request_id for future in reply.futures] == submitted[:5]
