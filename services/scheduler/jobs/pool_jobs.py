"""Runs the jobs of one pool under one term: a bounded number of tasks at once, tenants and their jobs in turn."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Mapping

from services.common.errors import ContractViolation, StaleFence, TinkermeshError, Unavailable
from services.scheduler import metrics
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.open_job import OpenJob
from services.scheduler.jobs.partials import Partials
from services.scheduler.jobs.restoring import restore
from services.scheduler.jobs.task_run import Claim, TaskRun, Throttled, Tools, patiently
from services.scheduler.sampling.turns import Turns
from services.scheduler.store.jobs import JobRow
from services.scheduler.waking import wait_at_most

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
IDLE_SECONDS = 5.0
JOBS_PER_PULL = 200

SamplesWait = Callable[[str], bool]
"""Whether somebody waits for the pool's samplers who goes first."""


class PoolJobs:
    def __init__(
        self, pool: str, term: int, tools: Tools, weights: Mapping[str, float] | None, interactive: SamplesWait
    ) -> None:
        self._pool = pool
        self._term = term
        self._tools = tools
        self._interactive = interactive
        self._turns: Turns[OpenJob] = Turns(fair=tools.limits.fair, weights=weights)
        self._partials = Partials(tools.store, pool, term, tools.limits.flush_seconds)
        self._open: dict[str, OpenJob] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen_arrival = 0
        self._recheck = True
        self._stale: StaleFence | None = None
        self._wake = asyncio.Event()

    def wake(self, *, recheck: bool = False) -> None:
        """`recheck`: a job may have been cancelled."""
        self._recheck = self._recheck or recheck
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or until another replica holds the lease."""
        saving = asyncio.create_task(self._partials.run())
        saving.add_done_callback(self._saving_ended)
        try:
            await self._until_stale()
        finally:
            await self._end(saving)

    async def _end(self, saving: asyncio.Task[None]) -> None:
        """What was generated is saved; what runs is left to the next lease holder."""
        for error in await end_tasks([saving, *self._tasks]):
            if not isinstance(error, StaleFence):
                log.error("a job's task failed", exc_info=error)
        metrics.job_tasks_running.labels(self._pool).set(0)
        try:
            await self._partials.save()
        except TinkermeshError as error:
            log.warning("pool %s: the last second of some tasks is generated again: %s", self._pool, error)

    async def _until_stale(self) -> None:
        restored = False
        while self._stale is None:
            try:
                if not restored:
                    await restore(self._tools.store, self._tools.files, self._pool, self._tools.limits.keep_ms)
                    restored = True
                await self._pull()
                await self._check_cancelled()
                self._place()
            except StaleFence as error:
                self._stale = error
            except Unavailable as error:
                log.warning("pool %s: jobs wait: %s", self._pool, error)
            await wait_at_most(self._wake, TICK_SECONDS if len(self._turns) else IDLE_SECONDS)
            self._wake.clear()
        log.info("pool %s: another replica runs jobs: %s", self._pool, self._stale)

    # -- which jobs there are ------------------------------------------------------------

    async def _pull(self) -> None:
        while True:
            rows = await self._tools.store.open_after(self._pool, self._seen_arrival, JOBS_PER_PULL)
            for row in rows:
                await self._take_up(row)
                self._seen_arrival = row.number("arrival")
            if len(rows) < JOBS_PER_PULL:
                return

    async def _take_up(self, row: JobRow) -> None:
        if row.job_id in self._open:
            return
        interrupted = await self._tools.store.running(row)
        job = OpenJob(row, interrupted)
        try:  # the replica that admitted it may have died before
            await in_job_store(self._tools.files.mark, job.place)
        except ContractViolation as error:  # its tasks will say so, each by its failure
            log.error("%s: %s", row.job_id, error)
        await self._tools.store.list_for(row.tenant_id, row.job_id, row.number("created_ms"))
        if interrupted:
            log.info("%s: %d tasks go on where they were", row.job_id, len(interrupted))
        self._open[row.job_id] = job
        self._join(job)

    async def _check_cancelled(self) -> None:
        if not self._recheck:
            return
        self._recheck = False
        jobs = [job for job in self._open.values() if not job.cancelled]
        for job, row in zip(jobs, await self._tools.store.rows([job.row.job for job in jobs]), strict=True):
            if row is None or row.cancelled:
                job.cancel()
                self._forget_if_over(job)

    # -- which task is next --------------------------------------------------------------

    def _join(self, job: OpenJob) -> None:
        if job.waits:
            self._turns.join(job.tenant_id, job)

    def _place(self) -> None:
        room = self._tools.limits.running_per_pool
        while len(self._tasks) < room and (job := self._turns.peek()) is not None:
            if self._tasks and self._interactive(self._pool):
                return  # one at a time goes on: samples may wait for as long as there are any
            self._turns.take()
            if not job.waits:  # cancelled while it stood in line
                self._forget_if_over(job)
                continue
            index = job.take()
            self._join(job)
            self._spawn(job, index)

    def _spawn(self, job: OpenJob, index: int) -> None:
        task = asyncio.create_task(self._serve(job, index))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(job, index, done))
        metrics.job_tasks_running.labels(self._pool).set(len(self._tasks))

    async def _serve(self, job: OpenJob, index: int) -> None:
        row, offsets = job.row, await self._offsets(job)
        claim = Claim(job.place, row.job, row.tenant_id, index, self._term, row.text("traceparent"), offsets)
        run = job.runs[index] = TaskRun(self._tools, claim, self._partials)
        run.cancelled = job.cancelled
        try:
            await run.run()
        except Throttled as throttled:
            job.runs.pop(index, None)
            self._hold(job, index, throttled.wait_ms)
        finally:
            job.runs.pop(index, None)

    async def _offsets(self, job: OpenJob) -> array[int]:
        if job.offsets is None:
            try:
                job.offsets = await patiently(lambda: in_job_store(self._tools.files.offsets, job.place))
            except ContractViolation as error:
                log.error("%s: %s", job.row.job_id, error)
                job.offsets = array("Q", [0])  # none of its tasks is found, and each fails by that
        return job.offsets

    def _hold(self, job: OpenJob, index: int, wait_ms: int) -> None:
        """Its tenant's tokens are used up: the job leaves the line until there are some again."""
        self._turns.remove(job)
        job.give_back(index)
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._rejoin, job)

    def _rejoin(self, job: OpenJob) -> None:
        self._turns.remove(job)  # others of its tasks may have brought it back
        self._join(job)
        self._wake.set()

    def _ended(self, job: OpenJob, index: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        metrics.job_tasks_running.labels(self._pool).set(len(self._tasks))
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StaleFence):
            self._stale = error
        elif error is not None:
            log.error("task %d of %s could not be run", index, job.row.job_id, exc_info=error)
            job.give_back(index)
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._rejoin, job)
        self._forget_if_over(job)
        self._wake.set()

    def _forget_if_over(self, job: OpenJob) -> None:
        if job.over and self._open.get(job.row.job_id) is job:
            del self._open[job.row.job_id]

    def _saving_ended(self, task: asyncio.Task[None]) -> None:
        """Partial outputs are saved for as long as tasks run: without that none may."""
        if task.cancelled():
            return
        error = task.exception()
        self._stale = error if isinstance(error, StaleFence) else StaleFence(f"partial outputs: {error}")
        if not isinstance(error, StaleFence):
            log.error("partial outputs are not saved any more", exc_info=error)
        self._wake.set()
