"""Jobs on a real Valkey and real files, with a scripted port in place of samplers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from redis.asyncio import Redis
from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1 import scheduler_pb2
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, MissingResource
from services.common.ids import parse_job_id
from services.scheduler.dispatch.tasks import end_tasks
from services.scheduler.jobs.admission import JobAdmission
from services.scheduler.jobs.book import JobBook
from services.scheduler.jobs.dispatcher import JobDispatcher
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.sweeper import JobSweeper
from services.scheduler.jobs.task_run import Tools
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.store.functions import Functions
from services.scheduler.store.jobs import JobStore
from services.scheduler.store.leases import LeaseStore
from services.scheduler.store.notices import Notices
from services.scheduler.tenancy.records import Quotas
from tests.doubles.eventually import eventually
from tests.doubles.generations import FakeGenerations

POOL, BASE = "double", "tinkermesh/double"
ALICE, BOB = "tenant-alice", "tenant-bob"
RUN = "00000000-0000-4000-8000-000000000001:train:0"
MINE, OTHER, FOREIGN = (f"tinker://{RUN}/sampler_weights/{name}" for name in ("mine", "other", "foreign"))
FACTS = types.PoolFacts(pool=POOL, base_model=BASE, vocab_size=512, max_context=2048)
ENDED = {"done", "partial", "failed", "cancelled"}


class FixedArtifacts:
    """ports.ArtifactReader: MINE and OTHER are Alice's, FOREIGN is Bob's, others are not there."""

    def __init__(self) -> None:
        self.versions = {MINE: "runs/m/sampler_weights/_version_mine_1"}
        self.versions[OTHER] = "runs/m/sampler_weights/_version_other_1"

    async def weights_info(self, path: str, tenant_id: str, access_digest: str) -> scheduler_pb2.WeightsInfo:
        await self.version_directory(path, tenant_id, access_digest)
        return scheduler_pb2.WeightsInfo(base_model=BASE, path=path)

    async def version_directory(self, path: str, tenant_id: str, access_digest: str) -> str:
        if path == FOREIGN:
            raise Forbidden(f"{path} belongs to another tenant")
        if path not in self.versions:
            raise MissingResource(f"{path} does not exist")
        return self.versions[path]


class FixedDirectory:
    lives = 100

    async def facts(self, pool: str) -> types.PoolFacts:
        return FACTS

    async def pools(self) -> list[types.PoolFacts]:
        return [FACTS]

    async def samplers(self, pool: str) -> list[scheduler_pb2.RegisterSamplerRequest]:
        """`lives` in all, each of an incarnation of its own."""
        names = [f"sampler-{number}" for number in range(1, 1 + self.lives)]
        return [scheduler_pb2.RegisterSamplerRequest(sampler_id=name, incarnation=f"{name}-life") for name in names]


@dataclass
class JobRig:
    redis: Redis
    functions: Functions
    root: Path
    port: FakeGenerations = field(default_factory=FakeGenerations)
    limits: JobLimits = field(default_factory=lambda: JobLimits(flush_seconds=0.02, trouble_seconds=30.0))
    open_tasks: int = 0
    quotas: dict[str, Quotas] = field(default_factory=dict)
    interactive: bool = False
    held_back: int = 0  # times a task might have begun and did not, for samples waited

    def __post_init__(self) -> None:
        self.artifacts = FixedArtifacts()
        self.directory: Any = FixedDirectory()
        self.store = JobStore(self.redis, self.functions)
        self.files = JobFiles(self.root)
        self.book = JobBook(self.store, self.files)
        self.sweeper = JobSweeper(self.store, self.files)
        self.notices = Notices(self.redis)
        self.term = 0
        self._tasks: list[asyncio.Task[None]] = []

    # -- the scheduler that runs them ----------------------------------------------------

    async def start(self) -> None:
        """A new lease holder."""
        leases = LeaseStore(self.functions)
        await self.redis.hset("tm:{p:double}:lease", "expires_ms", "0")  # type: ignore[misc]
        self.term = (await leases.acquire(POOL, "replica", 600_000)).term
        self.notices = Notices(self.redis)
        tools = Tools(
            self.store, self.files, self.port, self.directory, self.limits, lambda t: self.quotas.get(t, Quotas())
        )
        dispatcher = JobDispatcher(tools, self.notices, interactive=self._samples_wait)
        self._tasks = [asyncio.create_task(self.notices.run()), asyncio.create_task(dispatcher.run(POOL, self.term))]
        await self.notices.subscribed.wait()

    def _samples_wait(self, _pool: str) -> bool:
        self.held_back += self.interactive
        return self.interactive

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await end_tasks(tasks)

    async def kill(self) -> None:
        """Nothing more reaches Redis: what was not saved is lost."""
        real = self.functions.call

        async def dead(*_arguments: object) -> None:
            raise asyncio.CancelledError

        self.store._call = dead  # type: ignore[assignment]
        await self.stop()
        self.store._call = real

    # -- what clients do -----------------------------------------------------------------

    async def create(
        self, *tasks: pb.JobTask, tenant: str = ALICE, key: str = "", name: str = "", base_model: str = ""
    ) -> pb.Job:
        admission = JobAdmission(
            self.store, self.files, self.port, self.artifacts, self.directory,
            SamplerPresence(self.directory, expected=True), self.limits, lambda _tenant: self.open_tasks,
        )  # fmt: skip
        header = pb.CreateJobHeader(tenant_id=tenant, idempotency_key=key, name=name, base_model=base_model)
        row, repeated = await admission.create(header, list(tasks))
        job = await self.book.get(row.job_id, tenant)
        job.repeated = repeated
        return job

    async def get(self, job: pb.Job | str, tenant: str = ALICE) -> pb.Job:
        return await self.book.get(job if isinstance(job, str) else job.job_id, tenant)

    async def ended(self, job: pb.Job, tenant: str = ALICE) -> pb.Job:
        async def over() -> pb.Job | None:
            try:
                found = await self.get(job, tenant)
            except MissingResource:  # it is about to be restored
                return None
            return found if found.state in ENDED else None

        found = await eventually(over)
        assert found is not None
        return found

    async def results(self, job: pb.Job, tenant: str = ALICE, limit: int = 1000) -> list[dict[str, Any]]:
        request = pb.JobResultsRequest(tenant_id=tenant, job_id=job.job_id, limit=limit)
        return [json.loads(data) async for reply in self.book.results(request) for data in reply.results]

    async def done(self, *tasks: pb.JobTask, **options: Any) -> tuple[pb.Job, list[dict[str, Any]]]:
        """A job that has run to its end, and its results."""
        job = await self.ended(await self.create(*tasks, **options), options.get("tenant", ALICE))
        return job, await self.results(job, options.get("tenant", ALICE))

    async def place(self, job: pb.Job) -> Place:
        row = await self.store.row(parse_job_id(job.job_id))
        assert row is not None
        return Place(POOL, row.directory)

    async def saved(self, job: pb.Job, index: int = 0, sample: int = 0, samples: int = 1) -> int:
        """Tokens of a running task that a crash would not take."""
        partial = await self.store.partial(parse_job_id(job.job_id), index, samples)
        return len(partial.samples[sample].data) // 8


def ids_task(ids: Sequence[int], max_tokens: int | None = 4, **fields: Any) -> pb.JobTask:
    task = pb.JobTask(input=np.array(ids, "<i4").tobytes(), n=fields.pop("n", 1), top_k=-1, **fields)
    if max_tokens is not None:
        task.max_tokens = max_tokens
    return task


def text_task(prompt: str, max_tokens: int = 4, **fields: Any) -> pb.JobTask:
    return pb.JobTask(prompt=prompt, max_tokens=max_tokens, n=fields.pop("n", 1), top_k=-1, **fields)


def go_on(job: pb.Job | str, max_tokens: int = 4, *, whole: bool = False, **fields: Any) -> pb.JobTask:
    """`task_ref`, `index`, `sample` name what is continued."""
    reference = pb.JobReference(job_id=job if isinstance(job, str) else job.job_id, whole_job=whole)
    if "index" in fields:
        reference.index = fields.pop("index")
    if "task_ref" in fields:
        reference.task_id = fields.pop("task_ref")
    if "sample" in fields:
        reference.sample_index = fields.pop("sample")
    return pb.JobTask(continue_from=reference, max_tokens=max_tokens, n=fields.pop("n", 1), top_k=-1, **fields)
