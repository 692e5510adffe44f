"""Jobs in Redis: typed calls of functions/jobs.lua, and what is read without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis

from services.common.errors import MissingResource
from services.common.ids import JobId, parse_job_id
from services.scheduler.store import keys
from services.scheduler.store.functions import Argument, Functions
from services.scheduler.store.outages import reaching_redis

RECORD_BYTES = 8
"""int32 token and float32 logprob of one generated token."""
DONE, FAILED, CANCELLED, RUNS = "d", "f", "c", "r"
STATES = {DONE: "done", FAILED: "failed", CANCELLED: "cancelled", RUNS: "running"}
ROWS_PER_READ = 200
ENTRIES_PER_READ = 1_000
MESSAGE_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as Redis has it; times in unix ms, 0 = not yet."""

    job: JobId
    tenant_id: str
    fields: Mapping[str, str]

    @property
    def job_id(self) -> str:
        return str(self.job)

    @property
    def state(self) -> str:
        return self.fields.get("state", "")

    @property
    def directory(self) -> str:
        return self.fields.get("directory", "")

    @property
    def over(self) -> bool:
        """No task runs or will run."""
        return "ended_ms" in self.fields

    @property
    def cancelled(self) -> bool:
        return "cancel_ms" in self.fields

    @property
    def doomed(self) -> bool:
        return "doomed" in self.fields

    def text(self, name: str) -> str:
        return self.fields.get(name, "")

    def number(self, name: str) -> int:
        return int(self.fields.get(name, 0) or 0)


class Entry(NamedTuple):
    """How a task stands. `letter` "" = queued, or cancelled with its job before it ran."""

    letter: str = ""
    term: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    message: str = ""

    @property
    def line(self) -> str:
        """The message as Redis keeps it."""
        return " ".join(self.message.split())[:MESSAGE_CHARACTERS]

    def __str__(self) -> str:
        return f"{self.letter} {self.term} {self.prompt_tokens} {self.output_tokens} {self.line}"


class NewJob(NamedTuple):
    job: JobId
    tenant_id: str
    fingerprint: str
    directory: str
    tasks: int
    name: str
    base_model: str
    traceparent: str
    created_ms: int = 0


class PartialSample(NamedTuple):
    """`data`: RECORD_BYTES a token. `finish` "" = it goes on."""

    data: bytes
    text: str
    finish: str


class Partial(NamedTuple):
    """What a running task has, as of one moment; `segments` are JSON lines."""

    entry: Entry
    segments: list[bytes]
    samples: list[PartialSample]


class Growth(NamedTuple):
    """What a sample has got since `tokens_before` and `text_before` (bytes)."""

    job: JobId
    task: int
    sample: int
    tokens_before: int
    data: bytes
    text_before: int
    text: bytes
    segment: bytes
    finish: str


class JobStore:
    """All raise Unavailable; those with a term StaleFence."""

    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call

    # -- life ----------------------------------------------------------------------------

    async def admit(
        self, new: NewJob, limit: int, keep_ms: int, settled: Mapping[int, Entry] | None = None
    ) -> tuple[bool, str]:
        """(whether it was made now, the directory that counts). Raises KeyConflict, Busy."""
        flat = [part for index, entry in (settled or {}).items() for part in (index, str(entry))]
        identity = (str(new.job), new.tenant_id, new.fingerprint, new.directory, new.tasks, limit)
        rest = (new.name, new.base_model, new.traceparent, keep_ms, new.created_ms or "")
        made, directory = await self._call("job_admit", _prefix(new.job.pool), *identity, *rest, *flat)
        return bool(made), directory.decode()

    async def list_for(self, tenant_id: str, job_id: str, created_ms: int) -> None:
        """Puts it into its tenant's index, which lies elsewhere; repeatable."""
        with reaching_redis():
            await self._redis.zadd(keys.tenant_jobs(tenant_id), {job_id: created_ms})

    async def unlist(self, tenant_id: str, job_id: str) -> None:
        with reaching_redis():
            await self._redis.zrem(keys.tenant_jobs(tenant_id), job_id)

    async def cancel(self, job: JobId, tenant_id: str) -> None:
        """Raises MissingResource."""
        await self._call("job_cancel", _prefix(job.pool), str(job), tenant_id)

    async def doom(self, job: JobId, tenant_id: str = "") -> None:
        """Raises MissingResource."""
        await self._call("job_doom", _prefix(job.pool), str(job), tenant_id)

    async def forget(self, job: JobId, tenant_id: str) -> bool:
        """Its files are gone. False while a task of it still runs."""
        if not await self._call("job_forget", _prefix(job.pool), str(job)):
            return False
        await self.unlist(tenant_id, str(job))
        return True

    # -- tasks ---------------------------------------------------------------------------

    async def start(self, term: int, job: JobId, index: int, limits: str) -> int:
        """1 = run it, 0 = do not, below 0 = minus the ms until its tenant has tokens again."""
        return int(await self._call("job_start", _prefix(job.pool), term, str(job), index, limits))

    async def append(self, pool: str, term: int, growth: Sequence[Growth]) -> list[bool]:
        """False: it does not run under this term. A repeat changes nothing."""
        flat: list[Argument] = []
        for one in growth:
            flat += [str(one.job), one.task, one.sample, one.tokens_before, one.data, one.text_before, one.text]
            flat += [one.segment, one.finish]
        return [bool(answer) for answer in await self._call("job_append", _prefix(pool), term, *flat)]

    async def partial(self, job: JobId, index: int, samples: int) -> Partial:
        """One consistent look at a running task."""
        answer = await self._call("job_partial", _prefix(job.pool), str(job), index, samples)
        parts = [answer[at : at + 3] for at in range(2, len(answer), 3)]
        found = [PartialSample(data, text.decode(errors="replace"), end.decode()) for data, text, end in parts]
        return Partial(_entry(answer[0]), list(answer[1]), found)

    async def settle(self, term: int, job: JobId, index: int, entry: Entry, samples: int) -> bool:
        """False: it does not run under this term."""
        numbers = (entry.prompt_tokens, entry.output_tokens, samples)
        return bool(
            await self._call("job_settle", _prefix(job.pool), term, str(job), index, entry.letter, *numbers, entry.line)
        )

    # -- looking -------------------------------------------------------------------------

    async def row(self, job: JobId) -> JobRow | None:
        return (await self.rows([job]))[0]

    async def owned(self, job_id: str, tenant_id: str) -> JobRow:
        """Raises MissingResource: also for another tenant's."""
        row = await self.row(parse_job_id(job_id))
        if row is None or row.doomed or row.tenant_id != tenant_id:
            raise MissingResource(f"job {job_id} does not exist")
        return row

    async def rows(self, jobs: Sequence[JobId]) -> list[JobRow | None]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for job in jobs:
                pipe.hgetall(keys.job(job.pool, str(job)))
            found = await pipe.execute() if jobs else []
        return [_row(job, fields) for job, fields in zip(jobs, found, strict=True)]

    async def known(self, jobs: Sequence[JobId]) -> list[bool]:
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for job in jobs:
                pipe.exists(keys.job(job.pool, str(job)))
            return [bool(found) for found in (await pipe.execute() if jobs else [])]

    async def entries(self, job: JobId, indexes: Sequence[int]) -> list[Entry]:
        if not indexes:
            return []
        with reaching_redis():
            found = await self._redis.hmget(keys.job_tasks(job.pool, str(job)), list(indexes))
        return [_entry(value) for value in found]

    async def running(self, row: JobRow) -> list[int]:
        """Indexes of the tasks that run, or ran when their scheduler died."""
        found: list[int] = []
        for first in range(0, row.number("next"), ENTRIES_PER_READ):
            indexes = range(first, min(first + ENTRIES_PER_READ, row.number("next")))
            entries = await self.entries(row.job, indexes)
            found += [index for index, entry in zip(indexes, entries, strict=True) if entry.letter == RUNS]
        return found

    async def open_after(self, pool: str, arrival: int, limit: int) -> list[JobRow]:
        """Jobs that have not ended, in the order they came."""
        with reaching_redis():
            names = await self._redis.zrange(
                keys.jobs_open(pool), f"({arrival}", "+inf", byscore=True, offset=0, num=limit
            )
        rows = await self.rows([parse_job_id(name.decode()) for name in names])
        return [row for row in rows if row is not None]

    async def of_tenant(self, tenant_id: str) -> AsyncIterator[list[JobRow]]:
        """All of a tenant's, the newest first, in portions."""
        first = 0
        while True:
            with reaching_redis():
                names = await self._redis.zrevrange(keys.tenant_jobs(tenant_id), first, first + ROWS_PER_READ - 1)
            rows = await self.rows([parse_job_id(name.decode()) for name in names])
            yield [row for row in rows if row is not None and not row.doomed]
            first += len(names)
            if len(names) < ROWS_PER_READ:
                return

    async def count(self, tenant_id: str) -> int:
        """How many a tenant has, ended ones too."""
        with reaching_redis():
            return int(await self._redis.zcard(keys.tenant_jobs(tenant_id)))

    async def page(self, tenant_id: str, offset: int, limit: int) -> tuple[int, list[JobRow]]:
        """(how many a tenant has, some of them, the newest first): costs the page."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            pipe.zcard(keys.tenant_jobs(tenant_id))
            pipe.zrevrange(keys.tenant_jobs(tenant_id), offset, offset + limit - 1)
            total, names = await pipe.execute()
        rows = await self.rows([parse_job_id(name.decode()) for name in names])
        return int(total), [row for row in rows if row is not None and not row.doomed]

    async def due(self, pool: str, until_ms: int, limit: int) -> list[JobId]:
        """Ended ones whose time is over."""
        with reaching_redis():
            names = await self._redis.zrange(keys.jobs_ended(pool), "-inf", until_ms, byscore=True, offset=0, num=limit)
        return [parse_job_id(name.decode()) for name in names]

    async def doomed(self, pool: str, limit: int) -> list[JobId]:
        with reaching_redis():
            names = await self._redis.srandmember(keys.jobs_doomed(pool), limit)
        return [parse_job_id(name.decode()) for name in names]


def _prefix(pool: str) -> list[str]:
    return [keys.pool_prefix(pool)]


def _entry(value: bytes | None) -> Entry:
    if not value:
        return Entry()
    letter, term, prompt, output, message = value.decode(errors="replace").split(" ", 4)
    return Entry(letter, int(term), int(prompt), int(output), message)


def _row(job: JobId, fields: Mapping[bytes, bytes]) -> JobRow | None:
    if not fields:
        return None
    found = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    return JobRow(job, found.get("tenant", ""), found)
