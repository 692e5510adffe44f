"""One task from its claim to its settlement, through the loss of samplers and of Redis."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tinkermesh.v1 import types_pb2 as types

from services.common import logs, telemetry
from services.common.errors import ContractViolation, ServerError, StaleFence, TinkermeshError, Unavailable, UserError
from services.common.ids import JobId
from services.scheduler import metrics
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.attempt import Attempt, Work
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.output import TaskOutput
from services.scheduler.jobs.partials import Partials
from services.scheduler.jobs.preparing import input_ids, work_of
from services.scheduler.jobs.records import Failure, Input, Result, Task, Usage, result_of
from services.scheduler.jobs.trouble import Trouble
from services.scheduler.sampling.fleet import SamplerDirectory
from services.scheduler.sampling.generation import Generations
from services.scheduler.store.jobs import CANCELLED, DONE, FAILED, Entry, JobStore
from services.scheduler.tenancy.limits import encode_limits
from services.scheduler.tenancy.records import Quotas

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
CHARACTERS_PER_TOKEN = 4
"""For the quota of tokens, which counts a text before it is tokenized."""

T = TypeVar("T")


class PoolDirectory(SamplerDirectory, Protocol):
    async def facts(self, pool: str) -> types.PoolFacts: ...


@dataclass(frozen=True, slots=True)
class Tools:
    store: JobStore
    files: JobFiles
    generations: Generations
    directory: PoolDirectory
    limits: JobLimits
    quotas: Callable[[str], Quotas]


class Throttled(Exception):
    """The tenant's tokens of this minute are used up."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(wait_ms)
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Claim:
    """Which task, of whom. `offsets` of its job's lines."""

    place: Place
    job: JobId
    tenant_id: str
    index: int
    term: int
    traceparent: str
    offsets: array[int]


class TaskRun:
    def __init__(self, tools: Tools, claim: Claim, partials: Partials) -> None:
        self._tools = tools
        self._claim = claim
        self._partials = partials
        self._inner: asyncio.Task[None] | None = None
        self._ids = b""
        self._output = TaskOutput(claim.job, claim.index, 1)
        self.cancelled = False

    def cancel(self) -> None:
        """Its job was cancelled: what it has is its result."""
        self.cancelled = True
        if self._inner is not None:
            self._inner.cancel()

    async def run(self) -> bool:
        """False when it was not to run. Outages of Redis and of the store are waited out.

        Raises Throttled, StaleFence.
        """
        claim = self._claim
        name: dict[str, str | int | float | bool] = {"job_id": str(claim.job), "task": claim.index}
        with (
            logs.bind(request_id=str(claim.job), tenant_id=claim.tenant_id),
            telemetry.span("job_task", name, parent=claim.traceparent),
        ):
            task = await self._read()
            if not await self._start(task):
                return False
            self._output = TaskOutput(claim.job, claim.index, task.n)
            await self._settle(task, await self._worked(task))
        return True

    # -- the beginning -------------------------------------------------------------------

    async def _read(self) -> Task:
        """A line that cannot be read is a task that fails."""
        files, claim = self._tools.files, self._claim
        try:
            return await patiently(lambda: in_job_store(files.task, claim.place, claim.index, claim.offsets))
        except TinkermeshError as error:
            log.error("task %d of %s cannot be read: %s", claim.index, claim.job, error)
            return Task(error=error.message)

    async def _start(self, task: Task) -> bool:
        claim = self._claim
        facts = await patiently(lambda: self._tools.directory.facts(claim.job.pool))
        prompt = len(task.ids or b"") // 4 or len(task.prompt or "") // CHARACTERS_PER_TOKEN
        cost = prompt + task.n * (task.max_tokens or facts.max_context)
        limits = encode_limits(self._tools.quotas(claim.tenant_id), cost, answers=False)
        answer = await patiently(lambda: self._tools.store.start(claim.term, claim.job, claim.index, limits))
        if answer < 0:
            raise Throttled(-answer)
        return answer == 1

    # -- the middle ----------------------------------------------------------------------

    async def _worked(self, task: Task) -> TinkermeshError | None:
        """Why it failed; None when it did not, or was cancelled."""
        if self.cancelled:
            await self._resume(task)
            return None
        self._inner = asyncio.create_task(self._generated(task))
        try:
            await self._inner
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if not self.cancelled or (current is not None and current.cancelling()):
                self._inner.cancel()
                raise
        except StaleFence:
            raise
        except TinkermeshError as error:
            return error
        except Exception:  # noqa: BLE001 - a bug must fail this task, not leave it running for ever
            log.exception("task %d of %s failed unexpectedly", self._claim.index, self._claim.job)
            return ServerError("unexpected error, told in the scheduler's log")
        return None

    async def _generated(self, task: Task) -> None:
        if task.error:
            raise ServerError(task.error)
        await self._resume(task)
        trouble, attempts, work = Trouble(self._tools.limits), 0, None
        while work is None or self._output.unfinished(work.max_tokens):
            before, attempt = self._output.tokens, None
            try:
                work = work or await self._work(task)
                attempt = self._attempt(work, attempts)
                attempts += 1
                await attempt.run()
            except TinkermeshError as error:
                lives = attempt.lives if attempt is not None else set[str]()
                await self._after(error, trouble, lives, grew=self._output.tokens > before)

    async def _after(self, error: TinkermeshError, trouble: Trouble, lives: set[str], *, grew: bool) -> None:
        """What came is saved before anything else is tried."""
        if grew:
            trouble.forget()
        pause = trouble.judge(error, lives)
        log.warning("task %d of %s goes on in a moment: %s", self._claim.index, self._claim.job, error.message)
        await patiently(self._partials.save)
        metrics.job_retries.labels(self._claim.job.pool, "lost" if lives else "waited").inc()
        await asyncio.sleep(pause)

    async def _resume(self, task: Task) -> None:
        claim = self._claim
        partial = await patiently(lambda: self._tools.store.partial(claim.job, claim.index, task.n))
        self._output.resume(partial)

    async def _work(self, task: Task) -> Work:
        tools, claim = self._tools, self._claim
        self._ids = await input_ids(tools.files, tools.generations, claim.place, claim.index, task)
        facts = await tools.directory.facts(claim.job.pool)
        return work_of(claim.job, claim.index, claim.tenant_id, task, self._ids, facts)

    def _attempt(self, work: Work, number: int) -> Attempt:
        tools, claim = self._tools, self._claim
        name = f"{claim.job}.{claim.index}.{claim.term}.{number}"
        return Attempt(
            tools.generations,
            tools.directory,
            tools.limits,
            work,
            self._output,
            name,
            lambda: self._partials.note(self._output),
        )

    # -- the end -------------------------------------------------------------------------

    async def _settle(self, task: Task, error: TinkermeshError | None) -> None:
        """The file first, then the row that names it. Until both are written."""
        output, claim, tools = self._output, self._claim, self._tools
        letter, finish = self._verdict(error)
        kept = await self._kept_input()
        usage = _usage(len(self._ids) // 4, output)
        samples = output.result(kept.origin if kept else task.origin, finish)
        failure = Failure(error.message, "user" if isinstance(error, UserError) else "server") if error else None
        state = {FAILED: "failed", CANCELLED: "cancelled", DONE: "done"}[letter]
        result = result_of(task, claim.index, state, samples, usage, failure)
        if (lost := await self._not_put(result)) is not None:
            letter, state, error, failure = FAILED, "failed", lost, Failure(lost.message)
        entry = Entry(letter, claim.term, usage.prompt_tokens, usage.completion_tokens, error.message if error else "")
        await patiently(lambda: tools.store.settle(claim.term, claim.job, claim.index, entry, task.n))
        self._partials.drop(output)
        metrics.job_task_settled(claim.job.pool, state, failure.category if failure else "", usage.completion_tokens)
        log.info("task %d of %s: %s", claim.index, claim.job, error.message if error else state)

    async def _not_put(self, result: Result) -> TinkermeshError | None:
        """Why the result has no file: its directory has gone. It ends all the same, or nobody could delete its job."""
        claim, files = self._claim, self._tools.files
        try:
            await patiently(lambda: in_job_store(files.put_result, claim.place, claim.index, claim.term, result))
        except ContractViolation as error:
            log.error("the result of task %d of %s is lost: %s", claim.index, claim.job, error)
            return error
        return None

    def _verdict(self, error: TinkermeshError | None) -> tuple[str, str]:
        """Its letter, and the finish reason of samples that have none. One that was through when it was
        cancelled is done."""
        if error is not None:
            return FAILED, "error"
        if self.cancelled and not all(sample.finish for sample in self._output.samples):
            return CANCELLED, "cancelled"
        return DONE, ""

    async def _kept_input(self) -> Input | None:
        """Where a continuation came from; of a task that failed over its files, nothing."""
        files, claim = self._tools.files, self._claim
        try:
            return await patiently(lambda: in_job_store(files.input, claim.place, claim.index))
        except TinkermeshError as error:
            log.error("the input of task %d of %s cannot be read: %s", claim.index, claim.job, error)
            return None


def _usage(prompt: int, output: TaskOutput) -> Usage:
    return Usage(prompt, output.tokens, output.cached_tokens, prompt + output.tokens)


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Until Redis or the shared store is back; each of these may be repeated."""
    while True:
        try:
            return await work()
        except Unavailable as error:
            log.warning("a job waits: %s", error)
            await asyncio.sleep(PATIENCE_SECONDS)
