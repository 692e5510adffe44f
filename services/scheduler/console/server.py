"""The Console service: what the gateway's page shows a tenant. It only reads."""

from __future__ import annotations

from tinkermesh.v1 import console_pb2 as pb
from tinkermesh.v1 import console_pb2_grpc

from services.common.grpc_boundary import Context
from services.scheduler.console.pools import ConsolePools
from services.scheduler.console.queues import ConsoleQueues
from services.scheduler.console.runs import ConsoleRuns
from services.scheduler.directory import Directory
from services.scheduler.store.causes import Cause, CauseReader
from services.scheduler.store.overview import Overview

FAILURES = 50


class Console(console_pb2_grpc.ConsoleServicer):
    def __init__(
        self,
        *,
        runs: ConsoleRuns,
        pools: ConsolePools,
        queues: ConsoleQueues,
        causes: CauseReader,
        overview: Overview,
        directory: Directory,
    ) -> None:
        self._runs = runs
        self._pools = pools
        self._queues = queues
        self._causes = causes
        self._overview = overview
        self._directory = directory

    async def ListRuns(self, request: pb.ListConsoleRunsRequest, context: Context) -> pb.ListConsoleRunsReply:
        return await self._runs.page(request)

    async def GetRun(self, request: pb.GetConsoleRunRequest, context: Context) -> pb.ConsoleRunDetails:
        return await self._runs.get(request.run_id, request.tenant_id)

    async def GetState(self, request: pb.GetConsoleStateRequest, context: Context) -> pb.ConsoleState:
        tenant, now_ms = request.tenant_id, await self._overview.now_ms()
        state, pools = pb.ConsoleState(now_unix_ms=now_ms), await self._directory.pools()
        own = []
        for facts in sorted(pools, key=lambda one: one.base_model):
            busy = await self._queues.busy(facts.pool)
            own += [one for one in busy if one.tenant == tenant]
            state.pools.append(await self._pools.report(facts, tenant, busy))
        state.queues.extend(await self._queues.described(own, now_ms))
        causes = await self._causes.recent([facts.pool for facts in pools], tenant, FAILURES)
        state.failures.extend(_failure(cause) for cause in causes)
        return state


def _failure(cause: Cause) -> pb.ConsoleFailure:
    return pb.ConsoleFailure(
        unix_ms=cause.unix_ms,
        request_id=cause.request_id,
        op=cause.op,
        parent=cause.parent,
        cause=cause.text,
        user=cause.user,
        times=cause.times,
    )
