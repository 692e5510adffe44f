"""Typed calls to the Jobs service. Raises errors of services.common.errors only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

import grpc
from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1.jobs_pb2_grpc import JobsStub

from services.common.errors import Unavailable
from services.common.frames import FRAME_BYTES
from services.gateway.tasks import begun
from services.gateway.upstream.retry import Retry, typed

CREATE_SECONDS = 120.0
"""Of one attempt: ten thousand continued tasks are read and written meanwhile."""
WATCH_SECONDS = 6 * 3600.0
PAUSE_SECONDS = 0.5


class JobsClient:
    """On the scheduler's channel."""

    def __init__(self, channel: grpc.aio.Channel, retry: Retry, retry_seconds: float) -> None:
        self._stub: Any = JobsStub(channel)
        self._retry = retry
        self._patience = retry_seconds

    async def create(self, header: pb.CreateJobHeader, tasks: list[pb.JobTask]) -> pb.Job:
        """A repeat needs the header's key: without one there is a single attempt."""

        async def attempt(_seconds: float) -> pb.Job:
            return cast("pb.Job", await self._stub.CreateJob(_frames(header, tasks), timeout=CREATE_SECONDS))

        patience = None if header.idempotency_key else 0.0
        return await self._retry.call(attempt, patience)

    async def get(self, tenant: str, job_id: str) -> pb.Job:
        return cast("pb.Job", await self._unary(self._stub.GetJob, _named(tenant, job_id)))

    async def cancel(self, tenant: str, job_id: str) -> pb.Job:
        return cast("pb.Job", await self._unary(self._stub.CancelJob, _named(tenant, job_id)))

    async def delete(self, tenant: str, job_id: str) -> None:
        await self._unary(self._stub.DeleteJob, _named(tenant, job_id))

    async def page(self, request: pb.ListJobsRequest) -> tuple[int, list[pb.Job]]:
        """(total, page)."""
        parts = await self._parts(self._stub.ListJobs, request)
        return parts[-1].total_count, [job for part in parts for job in part.jobs]

    async def results(self, request: pb.JobResultsRequest) -> tuple[list[bytes], int, int]:
        """(JSON objects, the index behind the window, tasks of the job)."""
        parts = await self._parts(self._stub.JobResults, request)
        return _whole(parts), parts[-1].next_offset, parts[-1].tasks

    async def watch(self, tenant: str, job_id: str, silence_seconds: float) -> AsyncIterator[pb.Job | None]:
        """The job at each change until it has ended; None after each silence. Another replica goes on for one
        that ends. Raises MissingResource, Busy, Unavailable."""
        lost_since = 0.0
        while True:
            call = self._stub.WatchJob(_named(tenant, job_id), timeout=WATCH_SECONDS)
            try:
                async for job in _read(call, silence_seconds):
                    lost_since = 0.0
                    yield job
                    if job is not None and job.ended_unix_ms:
                        return
            except grpc.aio.AioRpcError as error:
                if not isinstance(found := typed(error), Unavailable):
                    raise found from error
            finally:
                call.cancel()
            lost_since = lost_since or time.monotonic()
            if time.monotonic() - lost_since > self._patience:
                raise Unavailable("the scheduler is away; watch again in a moment")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _parts(self, method: Any, request: Any) -> list[Any]:
        """All messages of a reply that may be larger than one; there is at least one."""

        async def attempt(seconds: float) -> list[Any]:
            return [part async for part in method(request, timeout=seconds)]

        return await self._retry.call(attempt)

    async def _unary(self, method: Any, request: Any) -> Any:
        return await self._retry.call(lambda timeout: method(request, timeout=timeout))


async def _read(call: Any, silence_seconds: float) -> AsyncIterator[pb.Job | None]:
    """Raises AioRpcError."""
    reading: asyncio.Task[Any] | None = None
    try:
        while True:
            reading = reading or begun(call.read())
            done, _ = await asyncio.wait({reading}, timeout=silence_seconds)
            if not done:
                yield None
                continue
            message, reading = reading.result(), None
            if not isinstance(message, pb.Job):
                return
            yield message
    finally:
        if reading is not None:
            reading.cancel()


def _whole(parts: Iterable[pb.JobResultsReply]) -> list[bytes]:
    """Results that were too large for a message are put together again."""
    found, cut = list[bytes](), list[bytes]()
    for part in parts:
        for data in part.results:
            found.append(b"".join([*cut, data]))
            cut = []
        if part.cut:
            cut = [found.pop()]
    return found


def _named(tenant: str, job_id: str) -> pb.JobRequest:
    return pb.JobRequest(tenant_id=tenant, job_id=job_id)


async def _frames(header: pb.CreateJobHeader, tasks: list[pb.JobTask]) -> AsyncIterator[pb.CreateJobFrame]:
    frame = pb.CreateJobFrame(header=header)
    for portion in _portions(tasks):
        frame.tasks.extend(portion)
        yield frame
        frame = pb.CreateJobFrame()


def _portions(tasks: Iterable[pb.JobTask]) -> Iterator[list[pb.JobTask]]:
    """In order, each as much as goes into a message."""
    portion, size = list[pb.JobTask](), 0
    for task in tasks:
        if portion and size + task.ByteSize() > FRAME_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(task)
        size += task.ByteSize()
    yield portion
