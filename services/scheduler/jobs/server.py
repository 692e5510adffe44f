"""The Jobs service: each method names the part that does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1 import jobs_pb2_grpc

from services.common.errors import InvalidInput, TooLarge
from services.common.grpc_boundary import Context
from services.scheduler.catalog.server import portions
from services.scheduler.front import Front
from services.scheduler.jobs.admission import JobAdmission
from services.scheduler.jobs.book import JobBook, described
from services.scheduler.jobs.progress import JobProgress

MOST_BYTES = 128 << 20
"""Of one request's frames, whatever a gateway lets pass."""


class Jobs(jobs_pb2_grpc.JobsServicer):
    def __init__(self, admission: JobAdmission, book: JobBook, progress: JobProgress, front: Front) -> None:
        self._admission = admission
        self._book = book
        self._progress = progress
        self._front = front

    async def CreateJob(self, request_iterator: AsyncIterator[pb.CreateJobFrame], context: Context) -> pb.Job:
        self._front.admit()
        header, tasks = await _collected(request_iterator)
        row, repeated = await self._admission.create(header, tasks)
        job = described(row)
        job.repeated = repeated
        return job

    async def GetJob(self, request: pb.JobRequest, context: Context) -> pb.Job:
        self._front.seen()
        return await self._book.get(request.job_id, request.tenant_id)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> AsyncIterator[pb.ListJobsReply]:
        self._front.seen()
        total, page = await self._book.page(request)
        for part in portions(page):
            yield pb.ListJobsReply(jobs=part, total_count=total)

    async def CancelJob(self, request: pb.JobRequest, context: Context) -> pb.Job:
        self._front.seen()
        return await self._book.cancel(request.job_id, request.tenant_id)

    async def DeleteJob(self, request: pb.JobRequest, context: Context) -> pb.DeleteJobReply:
        self._front.seen()
        await self._book.delete(request.job_id, request.tenant_id)
        return pb.DeleteJobReply()

    async def JobResults(self, request: pb.JobResultsRequest, context: Context) -> AsyncIterator[pb.JobResultsReply]:
        self._front.seen()
        async for reply in self._book.results(request):
            yield reply

    async def WatchJob(self, request: pb.JobRequest, context: Context) -> AsyncIterator[pb.Job]:
        self._front.seen()
        async for job in self._progress.watch(request.job_id, request.tenant_id):
            yield job


async def _collected(frames: AsyncIterator[pb.CreateJobFrame]) -> tuple[pb.CreateJobHeader, list[pb.JobTask]]:
    """Raises InvalidInput, TooLarge."""
    header, tasks, size = None, list[pb.JobTask](), 0
    async for frame in frames:
        size += frame.ByteSize()
        if size > MOST_BYTES:
            raise TooLarge(f"tasks: more than {MOST_BYTES} bytes; make several jobs of them")
        if frame.HasField("header"):
            header = frame.header
        tasks.extend(frame.tasks)
    if header is None:
        raise InvalidInput("the first frame has no header")
    return header, tasks
