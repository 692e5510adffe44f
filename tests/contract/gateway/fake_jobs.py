"""The doubled scheduler's jobs: made as they are asked for, none ever runs; changes are as a test wrote them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1.jobs_pb2_grpc import JobsServicer

from services.common.errors import MissingResource, TinkermeshError
from tests.contract.gateway.submitted import BASE_MODEL

JOB_ID = f"job-{'a' * 32}.double"


class FakeJobs(JobsServicer):
    def __init__(self) -> None:
        self.made: dict[str, pb.Job] = {}
        self.changes: list[pb.Job | TinkermeshError] = []

    async def CreateJob(self, request_iterator: AsyncIterator[pb.CreateJobFrame], context: Any) -> pb.Job:
        tasks = 0
        async for frame in request_iterator:
            tasks += len(frame.tasks)
        job = pb.Job(job_id=JOB_ID, base_model=BASE_MODEL, state="queued", tasks=tasks, queued=tasks)
        self.made[JOB_ID] = job
        return job

    async def CancelJob(self, request: pb.JobRequest, context: Any) -> pb.Job:
        if request.job_id not in self.made:
            raise MissingResource(f"job {request.job_id} does not exist")
        return self.made[request.job_id]

    async def WatchJob(self, request: pb.JobRequest, context: Any) -> AsyncIterator[pb.Job]:
        for one in self.changes:
            if isinstance(one, TinkermeshError):
                raise one
            yield one
