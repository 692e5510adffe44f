"""The Catalog service: each method names the part that does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message
from tinkermesh.v1 import catalog_pb2 as pb
from tinkermesh.v1 import catalog_pb2_grpc

from services.common.errors import InvalidInput
from services.common.frames import FRAME_BYTES
from services.common.grpc_boundary import Context
from services.scheduler.artifacts import Artifacts
from services.scheduler.catalog.checkpoints import Checkpoints
from services.scheduler.catalog.copies import Copies
from services.scheduler.catalog.downloads import Downloads
from services.scheduler.catalog.rebuild import rebuild
from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.catalog.sessions import SessionCatalog
from services.scheduler.store.catalog import CatalogStore

M = TypeVar("M", bound=Message)
LARGEST_PAGE = 1_000


class Catalog(catalog_pb2_grpc.CatalogServicer):
    def __init__(
        self,
        *,
        runs: TrainingRuns,
        checkpoints: Checkpoints,
        sessions: SessionCatalog,
        copies: Copies,
        downloads: Downloads,
        store: CatalogStore,
        artifacts: Artifacts,
    ) -> None:
        self._runs = runs
        self._checkpoints = checkpoints
        self._sessions = sessions
        self._copies = copies
        self._downloads = downloads
        self._store = store
        self._artifacts = artifacts

    async def ListTrainingRuns(
        self, request: pb.ListTrainingRunsRequest, context: Context
    ) -> AsyncIterator[pb.ListTrainingRunsReply]:
        page = _page(request.limit)
        total, runs = await self._runs.page(request.tenant_id, request.project_id, request.offset, page)
        for part in portions(runs):
            yield pb.ListTrainingRunsReply(training_runs=part, total_count=total)

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Context
    ) -> AsyncIterator[pb.ListCheckpointsReply]:
        page = _page(request.limit)
        run_id = request.training_run_id
        if run_id:
            await self._runs.check_owner(run_id, request.tenant_id)
        total, found = await self._checkpoints.page(request.tenant_id, run_id, request.offset, page)
        for part in portions(found):
            yield pb.ListCheckpointsReply(checkpoints=part, total_count=total)

    async def SetCheckpointPublic(
        self, request: pb.SetCheckpointPublicRequest, context: Context
    ) -> pb.SetCheckpointPublicReply:
        await self._checkpoints.set_public(request.path, request.tenant_id, request.public)
        return pb.SetCheckpointPublicReply()

    async def SetCheckpointTtl(self, request: pb.SetCheckpointTtlRequest, context: Context) -> pb.SetCheckpointTtlReply:
        ttl = request.ttl_seconds if request.HasField("ttl_seconds") else None
        await self._checkpoints.set_ttl(request.path, request.tenant_id, ttl)
        return pb.SetCheckpointTtlReply()

    async def ListSessions(self, request: pb.ListTenantSessionsRequest, context: Context) -> pb.ListTenantSessionsReply:
        total, ids = await self._sessions.page(request.tenant_id, request.offset, _page(request.limit))
        return pb.ListTenantSessionsReply(session_ids=ids, total_count=total)

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.SessionSummary:
        return await self._sessions.get(request.session_id, request.tenant_id)

    async def SearchSessions(
        self, request: pb.SearchSessionsRequest, context: Context
    ) -> AsyncIterator[pb.SearchSessionsReply]:
        _page(request.limit)
        reply = await self._sessions.search(request)
        for part in portions(reply.sessions):
            yield pb.SearchSessionsReply(
                sessions=part, next_unix_ms=reply.next_unix_ms, next_session_id=reply.next_session_id
            )

    async def AssignProject(self, request: pb.AssignProjectRequest, context: Context) -> pb.AssignProjectReply:
        await self._sessions.assign_project(request.session_id, request.tenant_id, request.project_id)
        return pb.AssignProjectReply()

    async def CopyCheckpoint(self, request: pb.CopyCheckpointRequest, context: Context) -> pb.CopyCheckpointReply:
        return pb.CopyCheckpointReply(path=await self._copies.copy(request))

    async def DescribeDownload(self, request: pb.DescribeDownloadRequest, context: Context) -> pb.DownloadDescription:
        return await self._downloads.describe(request.path, request.tenant_id)

    async def ReadFile(self, request: pb.ReadFileRequest, context: Context) -> AsyncIterator[pb.DownloadFrame]:
        async for frame in self._downloads.file(request):
            yield frame

    async def ReadArchive(self, request: pb.ReadArchiveRequest, context: Context) -> AsyncIterator[pb.DownloadFrame]:
        async for frame in self._downloads.archive(request):
            yield frame

    async def Rebuild(self, request: pb.RebuildRequest, context: Context) -> pb.RebuildReply:
        return await rebuild(self._store, self._artifacts)


def portions(entries: Iterable[M]) -> Iterator[list[M]]:
    """In order, each as much as goes into a message; one empty portion when there is nothing."""
    portion: list[M] = []
    size = 0
    for entry in entries:
        if portion and size + entry.ByteSize() > FRAME_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(entry)
        size += entry.ByteSize()
    yield portion


def _page(limit: int) -> int:
    """Raises InvalidInput."""
    if not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInput(f"limit: {limit} is not within 1 and {LARGEST_PAGE}")
    return limit
