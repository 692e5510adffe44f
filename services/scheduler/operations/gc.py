"""What the sweepers would delete or close now, and why: read from the indexes they go by. Deletes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from tinkermesh.v1 import admin_pb2 as pb

from services.common.tinker_path import SCHEME
from services.scheduler.dispatch.durable_sweeper import DurableSweeper
from services.scheduler.dispatch.sweeper import KEEP_ROWS_MS
from services.scheduler.jobs.sweeper import JobSweeper
from services.scheduler.operations.paging import bounded
from services.scheduler.store import keys
from services.scheduler.store.garbage import Due, GarbageReader
from services.scheduler.store.libraries import LibraryShelf
from services.scheduler.store.overview import Overview
from services.scheduler.store.payloads import PayloadStore

ITEMS = 100
DURABLE_PARTS = 20
LONGEST_WITHIN_SECONDS = 366 * 86_400

WHY = {
    "result": "settled so long ago that its retention is over, or delivered and its grace is over",
    "sample_result": "as a result, of a sample; its row goes with its sampling session",
    "recorded_sequence": "not used for as long as a recorded sequence lives",
    "closed_model": "closed for a day and its session is over: its rows and those of its requests go",
    "gapped_model": "it is closed: a command with a lower sequence id never arrived",
    "payload_file": "its command has settled and no log needs it, or the result it held has gone",
    "orphan_payload_file": "an hour old, and no request names it, or never written whole",
    "durable_point": "a newer one is the base of its model, or its model is closed",
    "orphan_durable_point": "an hour old, nobody's base and no running capture",
    "job": "it ended, and its retention is over",
    "job_files": "its owner deleted it, or its retention is over",
    "orphan_job_directory": "an hour old and never admitted, or never written whole",
    "session": "no heartbeat for the whole lease, or finished: what is open of it is closed",
    "checkpoint": "its ttl is over, or its owner deleted it",
    "function_library": "no replica has used it for a day",
}


@dataclass(frozen=True, slots=True)
class Times:
    """Of this replica's settings, ms."""

    lease_ms: int
    gap_timeout_ms: int


class GcPlan:
    def __init__(
        self,
        overview: Overview,
        reader: GarbageReader,
        payloads: PayloadStore,
        durables: DurableSweeper,
        libraries: LibraryShelf,
        jobs: JobSweeper,
        times: Times,
    ) -> None:
        self._overview = overview
        self._reader = reader
        self._payloads = payloads
        self._durables = durables
        self._libraries = libraries
        self._jobs = jobs
        self._times = times

    async def report(self, pools: Sequence[str], request: pb.DryRunGcRequest) -> pb.DryRunGcReply:
        """Raises Unavailable when Redis or the shared store is away."""
        within = min(request.within_seconds, LONGEST_WITHIN_SECONDS)
        until, limit = await self._overview.now_ms() + 1000 * within, bounded(request.limit, ITEMS)
        reply = pb.DryRunGcReply()
        for pool in pools:
            reply.reports.extend([one async for one in self._of_pool(pool, until, limit) if one.total])
        if not request.pool:
            reply.reports.extend([one async for one in self._of_no_pool(until, limit) if one.total])
        return reply

    async def _of_pool(self, pool: str, until: int, limit: int) -> AsyncIterator[pb.GcReport]:
        for kind, index in (("result", keys.expiring(pool)), ("sample_result", keys.settled_samples(pool))):
            yield await self._results(pool, kind, await self._reader.due(index, until, limit))
        yield await self._records(pool, await self._reader.due(keys.records(pool), until, limit))
        yield await self._closed(pool, await self._reader.due(keys.closed(pool), until - KEEP_ROWS_MS, limit))
        gaps = await self._reader.due(keys.gaps(pool), until - self._times.gap_timeout_ms, limit)
        yield _report(pool, "gapped_model", gaps.total, _later(gaps, self._times.gap_timeout_ms))
        for kind, index in (("payload_file", keys.dropped_blobs(pool)), ("durable_point", keys.dropped_durables(pool))):
            listed = await self._reader.listed(index, limit)
            yield _report(pool, kind, listed.total, listed.first)
        yield _files(pool, "orphan_payload_file", await self._payloads.orphans(pool), limit)
        directories, all_of_them = await self._durables.orphans(pool, DURABLE_PARTS)
        report = _files(pool, "orphan_durable_point", directories, limit)
        report.at_least = not all_of_them
        yield report
        async for report in self._of_jobs(pool, until, limit):
            yield report

    async def _of_jobs(self, pool: str, until: int, limit: int) -> AsyncIterator[pb.GcReport]:
        ended = await self._reader.due(keys.jobs_ended(pool), until, limit)
        yield _report(pool, "job", ended.total, ended.first)
        doomed = await self._reader.members(keys.jobs_doomed(pool), limit)
        yield _report(pool, "job_files", doomed.total, doomed.first)
        residues = [f"jobs/{pool}/{path.name}" for path in await self._jobs.residues(pool)]
        yield _files(pool, "orphan_job_directory", residues, limit)

    async def _of_no_pool(self, until: int, limit: int) -> AsyncIterator[pb.GcReport]:
        silent = await self._reader.due(keys.SESSIONS, until - self._times.lease_ms, limit)
        yield _report("", "session", silent.total, _later(silent, self._times.lease_ms))
        checkpoints = await self._reader.checkpoints(until, limit)
        report = _report("", "checkpoint", checkpoints.total, ())
        report.at_least = checkpoints.at_least
        for name, end, size in checkpoints.first:
            report.items.add(subject=f"{SCHEME}{name}", due_unix_ms=end, bytes=size)
        yield report
        yield _files("", "function_library", await self._libraries.unused(), limit)

    async def _results(self, pool: str, kind: str, due: Due) -> pb.GcReport:
        rows = await self._reader.fields([keys.req(pool, key) for key, _ in due.first], "request_id", "result_bytes")
        report = _report(pool, kind, due.total, ())
        for (key, at), (request_id, size) in zip(due.first, rows, strict=True):
            report.items.add(subject=request_id or key, due_unix_ms=at, bytes=int(size or 0))
        return report

    async def _records(self, pool: str, due: Due) -> pb.GcReport:
        """Its members are ``<tenant> <request key> <index>``."""
        named = [member.rsplit(" ", 2)[1:] for member, _ in due.first]
        sizes = await self._reader.sizes([keys.record(pool, key, int(index)) for key, index in named])
        report = _report(pool, "recorded_sequence", due.total, ())
        for (key, index), (_, at), size in zip(named, due.first, sizes, strict=True):
            report.items.add(subject=f"{key} {index}", due_unix_ms=at, bytes=size)
        return report

    async def _closed(self, pool: str, due: Due) -> pb.GcReport:
        """Those whose session goes on are looked at again a day later."""
        over = await self._reader.fields([keys.model(pool, model_id) for model_id, _ in due.first], "session_over")
        going = [(name, at + KEEP_ROWS_MS) for (name, at), (said,) in zip(due.first, over, strict=True) if said == "1"]
        report = _report(pool, "closed_model", len(going), going)
        report.at_least = due.total > len(due.first)
        return report


def _report(pool: str, kind: str, total: int, items: Iterable[tuple[str, int]]) -> pb.GcReport:
    report = pb.GcReport(pool=pool, kind=kind, why=WHY[kind], total=total)
    for subject, at in items:
        report.items.add(subject=subject, due_unix_ms=at)
    return report


def _files(pool: str, kind: str, names: Sequence[str], limit: int) -> pb.GcReport:
    return _report(pool, kind, len(names), [(name, 0) for name in names[:limit]])


def _later(due: Due, by_ms: int) -> list[tuple[str, int]]:
    return [(name, at + by_ms if at else 0) for name, at in due.first]
