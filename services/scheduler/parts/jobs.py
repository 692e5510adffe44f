"""Jobs put together: what serves them, and what the lease holder runs for them."""

from __future__ import annotations

from functools import cached_property

from services.scheduler.front import Front
from services.scheduler.jobs.admission import JobAdmission
from services.scheduler.jobs.book import JobBook
from services.scheduler.jobs.dispatcher import JobDispatcher
from services.scheduler.jobs.files import JobFiles
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.pool_jobs import SamplesWait
from services.scheduler.jobs.progress import JobProgress
from services.scheduler.jobs.server import Jobs
from services.scheduler.jobs.sweeper import JobSweeper
from services.scheduler.jobs.task_run import Tools
from services.scheduler.parts.ground import Ground, ms
from services.scheduler.ports import LeaderTask
from services.scheduler.sampling.generation import Generations
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.store.jobs import JobStore


class JobParts:
    """Each part is made once, at its first use. `interactive` says whether samples wait in a pool."""

    def __init__(
        self, ground: Ground, generations: Generations, presence: SamplerPresence, interactive: SamplesWait
    ) -> None:
        self._ground = ground
        self._generations = generations
        self._presence = presence
        self._interactive = interactive

    @cached_property
    def limits(self) -> JobLimits:
        settings = self._ground.settings
        return JobLimits(
            tasks_per_job=settings.job_tasks,
            running_per_pool=settings.job_running_tasks,
            stream_seconds=settings.sample_seconds,
            trouble_seconds=settings.sampler_wait_seconds,
            keep_ms=ms(settings.job_retention_seconds),
            fair=settings.fair,
        )

    @cached_property
    def store(self) -> JobStore:
        return JobStore(self._ground.redis, self._ground.functions)

    @cached_property
    def files(self) -> JobFiles:
        return JobFiles(self._ground.store_root)

    @cached_property
    def book(self) -> JobBook:
        return JobBook(self.store, self.files)

    @cached_property
    def progress(self) -> JobProgress:
        return JobProgress(self.book, self._ground.notices)

    @cached_property
    def sweeper(self) -> JobSweeper:
        return JobSweeper(self.store, self.files)

    @cached_property
    def admission(self) -> JobAdmission:
        ground = self._ground
        return JobAdmission(
            self.store, self.files, self._generations, ground.artifacts, ground.directory, self._presence, self.limits,
            lambda tenant_id: ground.book.quotas(tenant_id).job_tasks,
        )  # fmt: skip

    def service(self, front: Front) -> Jobs:
        return Jobs(self.admission, self.book, self.progress, front)

    @property
    def leader_tasks(self) -> list[LeaderTask]:
        ground = self._ground
        tools = Tools(self.store, self.files, self._generations, ground.directory, self.limits, ground.book.quotas)
        dispatcher = JobDispatcher(tools, ground.notices, ground.book.weights, interactive=self._interactive)
        return [dispatcher, self.sweeper]
