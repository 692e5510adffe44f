"""What a tenant may do with its jobs once they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import ContractViolation, InvalidInput
from services.common.frames import FRAME_BYTES, frames
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.files import CANCELLED as CANCELLED_MARK
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.records import Failure, Result
from services.scheduler.store.jobs import CANCELLED, FAILED, RUNS, Entry, JobRow, JobStore

LARGEST_PAGE = 1_000
BYTES_PER_ANSWER = 16 << 20
STATES = ("queued", "running", "cancelling", "done", "partial", "failed", "cancelled")


class JobBook:
    def __init__(self, store: JobStore, files: JobFiles) -> None:
        self._store = store
        self._files = files

    async def get(self, job_id: str, tenant_id: str) -> pb.Job:
        """Raises MissingResource."""
        return described(await self._store.owned(job_id, tenant_id))

    async def page(self, request: pb.ListJobsRequest) -> tuple[int, list[pb.Job]]:
        """(how many fit, the page). Raises InvalidInput."""
        if not 1 <= request.limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit: {request.limit} is not within 1 and {LARGEST_PAGE}")
        if request.state and request.state not in STATES:
            raise InvalidInput(f"state: {request.state[:40]!r} is not one of {', '.join(STATES)}")
        if not request.state and not request.name:
            total, rows = await self._store.page(request.tenant_id, request.offset, request.limit)
            return total, [described(row) for row in rows]
        return await self._filtered(request)

    async def _filtered(self, request: pb.ListJobsRequest) -> tuple[int, list[pb.Job]]:
        """Costs all jobs of the tenant."""
        fitting, page = 0, list[pb.Job]()
        async for rows in self._store.of_tenant(request.tenant_id):
            for row in rows:
                if request.state not in ("", row.state) or request.name not in ("", row.text("name")):
                    continue
                if request.offset <= fitting < request.offset + request.limit:
                    page.append(described(row))
                fitting += 1
        return fitting, page

    async def cancel(self, job_id: str, tenant_id: str) -> pb.Job:
        """No-op for one that has ended. Raises MissingResource."""
        row = await self._store.owned(job_id, tenant_id)
        if not row.over:
            await in_job_store(self._files.mark, Place(row.job.pool, row.directory), CANCELLED_MARK)
        await self._store.cancel(row.job, tenant_id)
        return await self.get(job_id, tenant_id)

    async def delete(self, job_id: str, tenant_id: str) -> None:
        """Raises MissingResource."""
        row = await self._store.owned(job_id, tenant_id)
        await self._store.doom(row.job, tenant_id)
        await self._store.unlist(tenant_id, job_id)

    async def results(self, request: pb.JobResultsRequest) -> AsyncIterator[pb.JobResultsReply]:
        """Raises MissingResource, InvalidInput, Unavailable."""
        if not 1 <= request.limit <= LARGEST_PAGE:
            raise InvalidInput(f"limit: {request.limit} is not within 1 and {LARGEST_PAGE}")
        row = await self._store.owned(request.job_id, request.tenant_id)
        count = row.number("tasks")
        indexes = range(request.offset, min(request.offset + request.limit, count))
        reply, sent, held = pb.JobResultsReply(tasks=count), 0, 0
        for index, entry in zip(indexes, await self._store.entries(row.job, indexes), strict=True):
            data = await self._result(row, index, entry)
            if data and held and held + len(data) > FRAME_BYTES:
                yield reply
                reply, held = pb.JobResultsReply(tasks=count), 0
            if sent and sent + len(data) > BYTES_PER_ANSWER:
                reply.next_offset = index
                yield reply
                return
            sent += len(data)
            *heads, data = list(frames(data)) or [data]
            for head in heads:
                yield pb.JobResultsReply(results=[head], tasks=count, cut=True)
            if data:
                reply.results.append(data)
            held += len(data)
        reply.next_offset = indexes.stop if len(indexes) else request.offset
        yield reply

    async def _result(self, row: JobRow, index: int, entry: Entry) -> bytes:
        """JSON, empty for a task that is not settled. One whose file is damaged says so."""
        if not entry.letter and row.cancelled:
            entry = Entry(CANCELLED)
        if entry.letter in ("", RUNS):
            return b""
        if entry.term == 0 and entry.letter in (FAILED, CANCELLED):  # before it ran: there is no file
            return _without_file(index, entry)
        try:
            return await in_job_store(self._files.result_data, Place(row.job.pool, row.directory), index, entry.term)
        except ContractViolation as error:
            return _without_file(index, Entry(FAILED, message=error.message))


def _without_file(index: int, entry: Entry) -> bytes:
    failed = entry.letter == FAILED
    error = Failure(entry.message, "user") if failed else None
    return msgspec.json.encode(
        Result(task_id=f"task-{index}", index=index, state="failed" if failed else "cancelled", error=error)
    )


def described(row: JobRow) -> pb.Job:
    return pb.Job(
        job_id=row.job_id,
        name=row.text("name"),
        base_model=row.text("base_model"),
        state=row.state,
        tasks=row.number("tasks"),
        queued=row.number("queued"),
        running=row.number("running"),
        done=row.number("done"),
        failed=row.number("failed"),
        cancelled=row.number("cancelled"),
        prompt_tokens=row.number("prompt_tokens"),
        output_tokens=row.number("output_tokens"),
        created_unix_ms=row.number("created_ms"),
        started_unix_ms=row.number("started_ms"),
        ended_unix_ms=row.number("ended_ms"),
        expires_unix_ms=row.number("expires_ms"),
    )
