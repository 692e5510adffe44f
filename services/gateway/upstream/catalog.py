"""Typed calls to the Catalog service. Raises errors of services.common.errors only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import grpc
from tinkermesh.v1 import catalog_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1.catalog_pb2_grpc import CatalogStub

from services.common.errors import Unavailable
from services.gateway.upstream.retry import Retry

log = logging.getLogger(__name__)

DOWNLOAD_SECONDS = 6 * 3600.0
FRAME_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Download:
    """An open stream; `total_bytes` is the size of the whole file or archive."""

    total_bytes: int
    call: Any

    async def data(self) -> AsyncIterator[bytes]:
        """Ends early, which the client sees by the length, when the scheduler goes away."""
        try:
            while (frame := await _next(self.call)) is not None:
                if frame.data:
                    yield frame.data
        except (grpc.aio.AioRpcError, Unavailable) as error:
            log.warning("a download broke off: %s", error)
        finally:
            self.call.cancel()


class CatalogClient:
    """On the scheduler's channel."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry) -> None:
        self._stub: Any = CatalogStub(channel)
        self._retry = retry

    async def training_runs(self, request: pb.ListTrainingRunsRequest) -> tuple[int, list[scheduler_pb2.TrainingRun]]:
        """(total, page)."""
        parts = await self._parts(self._stub.ListTrainingRuns, request)
        return parts[-1].total_count, [run for part in parts for run in part.training_runs]

    async def checkpoints(self, request: pb.ListCheckpointsRequest) -> tuple[int, list[scheduler_pb2.CheckpointInfo]]:
        """(total, page)."""
        parts = await self._parts(self._stub.ListCheckpoints, request)
        return parts[-1].total_count, [found for part in parts for found in part.checkpoints]

    async def set_public(self, tenant: str, path: str, public: bool) -> None:
        request = pb.SetCheckpointPublicRequest(tenant_id=tenant, path=path, public=public)
        await self._unary(self._stub.SetCheckpointPublic, request)

    async def set_ttl(self, tenant: str, path: str, ttl_seconds: int | None) -> None:
        request = pb.SetCheckpointTtlRequest(tenant_id=tenant, path=path, ttl_seconds=ttl_seconds)
        await self._unary(self._stub.SetCheckpointTtl, request)

    async def sessions(self, request: pb.ListTenantSessionsRequest) -> pb.ListTenantSessionsReply:
        return cast("pb.ListTenantSessionsReply", await self._unary(self._stub.ListSessions, request))

    async def session(self, tenant: str, session_id: str) -> pb.SessionSummary:
        request = pb.GetSessionRequest(tenant_id=tenant, session_id=session_id)
        return cast("pb.SessionSummary", await self._unary(self._stub.GetSession, request))

    async def search_sessions(self, request: pb.SearchSessionsRequest) -> pb.SearchSessionsReply:
        whole = pb.SearchSessionsReply()
        for part in await self._parts(self._stub.SearchSessions, request):
            whole.MergeFrom(part)
        return whole

    async def assign_project(self, tenant: str, session_id: str, project_id: str) -> None:
        request = pb.AssignProjectRequest(tenant_id=tenant, session_id=session_id, project_id=project_id)
        await self._unary(self._stub.AssignProject, request)

    async def copy(self, request: pb.CopyCheckpointRequest) -> str:
        return str((await self._unary(self._stub.CopyCheckpoint, request)).path)

    async def describe_download(self, tenant: str, path: str) -> pb.DownloadDescription:
        request = pb.DescribeDownloadRequest(tenant_id=tenant, path=path)
        return cast("pb.DownloadDescription", await self._unary(self._stub.DescribeDownload, request))

    async def read_file(self, request: pb.ReadFileRequest) -> Download:
        return await self._download(self._stub.ReadFile, request)

    async def read_archive(self, request: pb.ReadArchiveRequest) -> Download:
        return await self._download(self._stub.ReadArchive, request)

    async def _download(self, method: Any, request: Any) -> Download:
        async def attempt(seconds: float) -> Download:
            call = method(request, timeout=DOWNLOAD_SECONDS)
            first = await _next(call, seconds)
            return Download(first.total_bytes if first is not None else 0, call)

        return await self._retry.call(attempt)

    async def _parts(self, method: Any, request: Any) -> list[Any]:
        """All messages of a reply that may be larger than one; there is at least one."""

        async def attempt(seconds: float) -> list[Any]:
            return [part async for part in method(request, timeout=seconds)]

        return await self._retry.call(attempt)

    async def _unary(self, method: Any, request: Any) -> Any:
        return await self._retry.call(lambda timeout: method(request, timeout=timeout))


async def _next(call: Any, seconds: float = FRAME_SECONDS) -> pb.DownloadFrame | None:
    """None at the end. Raises AioRpcError, Unavailable."""
    try:
        async with asyncio.timeout(seconds):
            frame = await call.read()
    except TimeoutError as error:
        call.cancel()
        raise Unavailable("the scheduler does not answer") from error
    return frame if isinstance(frame, pb.DownloadFrame) else None
