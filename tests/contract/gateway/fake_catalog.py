"""The doubled scheduler's catalog: one page of made-up entries, and a record of what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tinkermesh.v1 import catalog_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1.catalog_pb2_grpc import CatalogServicer

from services.common.errors import InvalidInput, MissingResource
from services.common.tinker_path import parse_tinker_path
from tests.contract.gateway.belongings import Belongings

CREATED_MS = 1_700_000_000_000
FILE = bytes(range(256)) * 12_000  # three frames
VERSION = "_version_sw_" + "0" * 32


class FakeCatalog(CatalogServicer):
    def __init__(self, belongings: Belongings) -> None:
        self.belongings = belongings
        self.hold: asyncio.Event | None = None  # files are not sent before it is set
        self.asked: list[Any] = []
        self.damaged = False  # the metadata of every version
        self.total = 3
        self.kind = "weights"
        self.moved = 0  # how many were saved since the first page of a list

    @property
    def last(self) -> Any:
        return self.asked[-1]

    def checkpoint(self, run_id: str, number: int = 0) -> scheduler_pb2.CheckpointInfo:
        checkpoint_id = f"{self.kind}/ck{number}"
        return scheduler_pb2.CheckpointInfo(
            checkpoint_id=checkpoint_id,
            path=f"tinker://{run_id}/{checkpoint_id}",
            created_unix_ms=CREATED_MS,
            public=True,
        )

    def _owned(self, path: str, tenant: str) -> None:
        self.belongings.owned(self.belongings.models, parse_tinker_path(path).model_id, tenant, "run")

    async def ListTrainingRuns(self, request: Any, context: Any) -> AsyncIterator[pb.ListTrainingRunsReply]:
        self.asked.append(request)
        for model_id, (tenant, info) in self.belongings.models.items():
            if tenant == request.tenant_id:
                run = scheduler_pb2.TrainingRun(training_run_id=model_id, tenant_id=tenant, layout=info.layout)
                run.base_model, run.last_request_unix_ms = info.facts.base_model, CREATED_MS
                yield pb.ListTrainingRunsReply(training_runs=[run], total_count=self.total)
        yield pb.ListTrainingRunsReply(total_count=self.total)

    async def ListCheckpoints(self, request: Any, context: Any) -> AsyncIterator[pb.ListCheckpointsReply]:
        self.asked.append(request)
        run_id = request.training_run_id or next(iter(self.belongings.models), "")
        if request.training_run_id:
            self.belongings.owned(self.belongings.models, run_id, request.tenant_id, "run")
        first = request.offset - self.moved if request.offset else 0
        numbers = range(self.total)[first : first + request.limit]
        yield pb.ListCheckpointsReply(
            checkpoints=[self.checkpoint(run_id, number) for number in numbers], total_count=self.total
        )

    async def SetCheckpointPublic(self, request: Any, context: Any) -> pb.SetCheckpointPublicReply:
        self.asked.append(request)
        self._owned(request.path, request.tenant_id)
        return pb.SetCheckpointPublicReply()

    async def SetCheckpointTtl(self, request: Any, context: Any) -> pb.SetCheckpointTtlReply:
        self.asked.append(request)
        self._owned(request.path, request.tenant_id)
        return pb.SetCheckpointTtlReply()

    async def ListSessions(self, request: Any, context: Any) -> pb.ListTenantSessionsReply:
        self.asked.append(request)
        mine = [one for one, tenant in self.belongings.sessions.items() if tenant == request.tenant_id]
        return pb.ListTenantSessionsReply(session_ids=mine, total_count=len(mine))

    async def GetSession(self, request: Any, context: Any) -> pb.SessionSummary:
        self.asked.append(request)
        self.belongings.owned(self.belongings.sessions, request.session_id, request.tenant_id, "session")
        return pb.SessionSummary(session_id=request.session_id, user_metadata_json='{"a":"b"}', display_name="name")

    async def SearchSessions(self, request: Any, context: Any) -> AsyncIterator[pb.SearchSessionsReply]:
        self.asked.append(request)
        for session_id in self.belongings.sessions:
            summary = pb.SessionSummary(session_id=session_id, created_unix_ms=CREATED_MS + 1, status="finished")
            yield pb.SearchSessionsReply(sessions=[summary], next_unix_ms=CREATED_MS + 1, next_session_id=session_id)

    async def AssignProject(self, request: Any, context: Any) -> pb.AssignProjectReply:
        self.asked.append(request)
        self.belongings.owned(self.belongings.sessions, request.session_id, request.tenant_id, "session")
        return pb.AssignProjectReply()

    async def CopyCheckpoint(self, request: Any, context: Any) -> pb.CopyCheckpointReply:
        self.asked.append(request)
        return pb.CopyCheckpointReply(path=request.source_path)

    async def DescribeDownload(self, request: Any, context: Any) -> pb.DownloadDescription:
        self.asked.append(request)
        self._owned(request.path, request.tenant_id)
        files = [pb.DownloadFile(name="adapter_model.safetensors", size_bytes=len(FILE))]
        return pb.DownloadDescription(version=VERSION, files=files)

    async def ReadFile(self, request: Any, context: Any) -> AsyncIterator[pb.DownloadFrame]:
        self.asked.append(request)
        if self.damaged:
            raise InvalidInput("its metadata does not carry this mesh's seal")
        if request.file != "adapter_model.safetensors":
            raise MissingResource("no such file")
        if request.offset > len(FILE):
            raise InvalidInput("offset: behind the end")
        data = FILE[request.offset :][: request.length or None]
        yield pb.DownloadFrame(total_bytes=len(FILE))
        if self.hold is not None:
            await self.hold.wait()
        for start in range(0, len(data), 1 << 20):
            yield pb.DownloadFrame(data=data[start : start + (1 << 20)])

    async def ReadArchive(self, request: Any, context: Any) -> AsyncIterator[pb.DownloadFrame]:
        self.asked.append(request)
        yield pb.DownloadFrame(total_bytes=4)
        yield pb.DownloadFrame(data=b"tar!")
