"""Typed calls to the Console service. Raises errors of services.common.errors only."""

from __future__ import annotations

from typing import Any, cast

import grpc
from tinkermesh.v1 import console_pb2 as pb
from tinkermesh.v1.console_pb2_grpc import ConsoleStub

from services.gateway.upstream.retry import Retry


class ConsoleClient:
    """On the scheduler's channel."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry) -> None:
        self._stub: Any = ConsoleStub(channel)
        self._retry = retry

    async def runs(self, request: pb.ListConsoleRunsRequest) -> pb.ListConsoleRunsReply:
        return cast("pb.ListConsoleRunsReply", await self._unary(self._stub.ListRuns, request))

    async def run(self, tenant: str, run_id: str) -> pb.ConsoleRunDetails:
        request = pb.GetConsoleRunRequest(tenant_id=tenant, run_id=run_id)
        return cast("pb.ConsoleRunDetails", await self._unary(self._stub.GetRun, request))

    async def state(self, tenant: str) -> pb.ConsoleState:
        request = pb.GetConsoleStateRequest(tenant_id=tenant)
        return cast("pb.ConsoleState", await self._unary(self._stub.GetState, request))

    async def _unary(self, method: Any, request: Any) -> Any:
        return await self._retry.call(lambda timeout: method(request, timeout=timeout))
