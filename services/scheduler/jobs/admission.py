"""Accepts jobs: idempotent by (tenant, x-idempotency-key), written down before Redis knows of them."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tinkermesh.v1 import jobs_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common import telemetry
from services.common.clock import now_ms
from services.common.errors import Busy, InvalidInput, KeyConflict, UserError
from services.common.ids import JobId, key_hash
from services.scheduler.jobs.adapters import Adapters
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.expansion import Expansion, Made, check_names, named
from services.scheduler.jobs.files import Draft, JobFiles
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.records import Header
from services.scheduler.jobs.sources import Sources
from services.scheduler.pools import Pools, same_base_model
from services.scheduler.ports import ArtifactReader, TrainerDirectory
from services.scheduler.sampling.generation import Generations
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.store.jobs import FAILED, Entry, JobRow, JobStore, NewJob

TASKS_PER_WRITE = 100


@dataclass(slots=True)
class _Written:
    """What was written of a job so far."""

    names: list[str] = field(default_factory=list)
    failed: dict[int, Entry] = field(default_factory=dict)


class JobAdmission:
    def __init__(
        self,
        store: JobStore,
        files: JobFiles,
        generations: Generations,
        artifacts: ArtifactReader,
        directory: TrainerDirectory,
        presence: SamplerPresence,
        limits: JobLimits,
        open_tasks: Callable[[str], int],
    ) -> None:
        self._store = store
        self._files = files
        self._generations = generations
        self._artifacts = artifacts
        self._directory = directory
        self._presence = presence
        self._limits = limits
        self._open_tasks = open_tasks

    async def create(self, header: pb.CreateJobHeader, tasks: list[pb.JobTask]) -> tuple[JobRow, bool]:
        """(the job, whether it was there already).

        Raises InvalidInput, MissingResource (a reference), KeyConflict, Busy, Unavailable.
        """
        self._check(tasks)
        key, fingerprint = _key(header), _fingerprint(header, tasks)
        if header.idempotency_key and (held := await self._held(key)) is not None:
            return _repeated(held, fingerprint), True
        if await self._store.count(header.tenant_id) >= (most := self._limits.jobs_per_tenant):
            raise Busy(f"{most} jobs are kept for you; delete some that have ended, or wait until their time is over")
        sources = Sources(self._store, self._files, self._generations, header.tenant_id)
        facts = await self._pool(header, tasks, sources)
        await self._presence.check(facts.pool, "base_model")
        adapters = Adapters(self._artifacts, header.tenant_id, facts)
        job = JobId(key, facts.pool)
        expansion = Expansion(job, sources, adapters, facts)
        return await self._admitted(job, header, fingerprint, facts.base_model, expansion, tasks)

    def _check(self, tasks: list[pb.JobTask]) -> None:
        if not tasks:
            raise InvalidInput("tasks: a job needs at least one")
        if len(tasks) > self._limits.tasks_per_job:
            raise InvalidInput(f"tasks: {len(tasks)} are above the limit of {self._limits.tasks_per_job} of a job")
        for index, task in enumerate(tasks):
            if task.WhichOneof("source") is None:
                raise InvalidInput(f"task {index}: give exactly one of prompt, input and continue_from")
            if task.n > self._limits.samples_per_task:
                raise InvalidInput(f"task {index}: n {task.n} is above the limit of {self._limits.samples_per_task}")
            if task.continue_from.whole_job and len(tasks) > 1:
                raise InvalidInput("continue_from: a whole job is continued by a job of its own")

    async def _held(self, key: str) -> JobRow | None:
        """What the key made, in whichever pool: also when what it continued has gone since."""
        jobs = [JobId(key, facts.pool) for facts in await self._directory.pools()]
        return next((row for row in await self._store.rows(jobs) if row is not None), None)

    # -- where it runs -------------------------------------------------------------------

    async def _pool(self, header: pb.CreateJobHeader, tasks: list[pb.JobTask], sources: Sources) -> types.PoolFacts:
        """Of base_model, else of what is continued, else of the adapters, else the only one."""
        pools = {await self._pool_of(task, sources) for task in tasks if task.WhichOneof("source") == "continue_from"}
        if len(pools) > 1:
            raise InvalidInput("continue_from: these jobs sample different base models; make a job of each")
        found = [await self._directory.facts(pool) for pool in pools]
        if not header.base_model:
            return found[0] if found else await self._guessed(tasks, header.tenant_id)
        facts = await Pools(self._directory).of_base_model(header.base_model)
        if found and not same_base_model(found[0], header.base_model):
            raise InvalidInput(f"base_model: what is continued was sampled from {found[0].base_model!r}; leave it out")
        return facts

    async def _pool_of(self, task: pb.JobTask, sources: Sources) -> str:
        return (await sources.get(task.continue_from.job_id)).row.job.pool

    async def _guessed(self, tasks: list[pb.JobTask], tenant_id: str) -> types.PoolFacts:
        known = await self._directory.pools()
        if len(known) == 1:
            return known[0]
        for path in dict.fromkeys(task.lora_path for task in tasks if task.lora_path):
            with contextlib.suppress(UserError):  # it is one task's failure, and told there
                info = await self._artifacts.weights_info(path, tenant_id, "")
                return await Pools(self._directory).of_base_model(info.base_model, "lora_path")
        names = ", ".join(sorted(facts.base_model for facts in known)) or "none yet"
        raise InvalidInput(f"base_model: say which one is sampled from; available: {names}")

    # -- writing it down -----------------------------------------------------------------

    async def _admitted(
        self, job: JobId, header: pb.CreateJobHeader, fingerprint: str, base_model: str, expansion: Expansion,
        tasks: list[pb.JobTask],
    ) -> tuple[JobRow, bool]:  # fmt: skip
        draft = await in_job_store(self._files.draft, job)
        try:
            written = await self._write(draft, expansion, tasks)
            created = now_ms()
            record = Header(
                str(job), header.tenant_id, base_model, header.name, created, len(written.names), fingerprint
            )
            await in_job_store(draft.publish, record)
        except BaseException:  # nothing is handled here: Redis does not know of it
            await in_job_store(draft.discard)
            raise
        new = NewJob(
            job, header.tenant_id, fingerprint, draft.place.directory, len(written.names), header.name, base_model,
            telemetry.current_traceparent(), created,
        )  # fmt: skip
        made = await self._let_in(new, written.failed, draft)
        await self._store.list_for(header.tenant_id, str(job), created)
        return await self._store.owned(str(job), header.tenant_id), not made

    async def _let_in(self, new: NewJob, failed: dict[int, Entry], draft: Draft) -> bool:
        """Whether it was made now. Where Redis' answer is lost its row may name the draft, which stays then: the
        sweeper removes it if not."""
        try:
            limit = self._open_tasks(new.tenant_id)
            made, directory = await self._store.admit(new, limit, self._limits.keep_ms, failed)
        except UserError:  # refused
            await in_job_store(draft.discard)
            raise
        if directory == draft.place.directory:
            await in_job_store(self._files.mark, draft.place)
        else:
            await in_job_store(draft.discard)
        return made

    async def _write(self, draft: Draft, expansion: Expansion, tasks: list[pb.JobTask]) -> _Written:
        written, portion = _Written(), list[Made]()
        async for made in expansion.tasks(tasks):
            index = len(written.names)
            written.names.append(named(made, index))
            if made[0].error:
                written.failed[index] = Entry(FAILED, message=made[0].error)
            if index >= self._limits.tasks_per_job:
                raise InvalidInput(f"continue_from: the job would have more than {self._limits.tasks_per_job} tasks")
            portion.append(made)
            if len(portion) == TASKS_PER_WRITE:
                await in_job_store(draft.add, portion)
                portion = []
        await in_job_store(draft.add, portion)
        check_names(written.names)
        return written


def _key(header: pb.CreateJobHeader) -> str:
    """What its id is made of, beside its pool."""
    key = header.idempotency_key
    return key_hash("job", header.tenant_id, key) if key else uuid.uuid4().hex


def _fingerprint(header: pb.CreateJobHeader, tasks: list[pb.JobTask]) -> str:
    """Over what was asked, not over what references came out as: a repeat finds the job it made."""
    digest = hashlib.blake2b(digest_size=16)
    for message in (pb.CreateJobHeader(name=header.name, base_model=header.base_model), *tasks):
        data = message.SerializeToString(deterministic=True)
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


def _repeated(held: JobRow, fingerprint: str) -> JobRow:
    if held.doomed:
        raise KeyConflict("the job of this x-idempotency-key was deleted; use a new one")
    if held.text("fingerprint") != fingerprint:
        raise KeyConflict("this x-idempotency-key already made another job; use a new one")
    return held
