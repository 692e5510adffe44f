"""The jobs that a new one continues: their tasks, and what each has generated as of now."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from services.common.errors import ContractViolation, InvalidInput, MissingResource
from services.scheduler.core.continuation import BadReference, Reference, find_sample, find_task
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.preparing import tokenized
from services.scheduler.jobs.records import Origin, Task, task_name
from services.scheduler.sampling.generation import Generations
from services.scheduler.store.jobs import RECORD_BYTES, RUNS, STATES, Entry, JobRow, JobStore

JOBS_SHOWN = 5
MOST_TASKS = 100_000
"""Of all jobs that one request continues: a few hundred bytes of memory each."""


@dataclass(frozen=True, slots=True)
class SourceSample:
    """Ids are int32 little-endian."""

    task: Task
    input: bytes
    output: bytes
    origin: Origin


class Source:
    """One job that is continued."""

    def __init__(self, store: JobStore, files: JobFiles, generations: Generations, row: JobRow) -> None:
        self.row = row
        self._store = store
        self._files = files
        self._generations = generations
        self._place = Place(row.job.pool, row.directory)
        self._tasks: list[Task] = []
        self._offsets: array[int] = array("Q")

    async def open(self) -> None:
        """Raises ContractViolation, Unavailable."""
        self._tasks = await in_job_store(lambda: [_bare(task) for task in self._files.tasks(self._place)])
        self._offsets = await in_job_store(self._files.offsets, self._place)

    @property
    def count(self) -> int:
        return len(self._tasks)

    def find(self, reference: Reference) -> tuple[int, int]:
        """(task, sample). Raises InvalidInput listing the candidates."""
        try:
            names = [task_name(task, index) for index, task in enumerate(self._tasks)]
            index = find_task(reference, self.row.job_id, names)
            return index, find_sample(reference, f"task {names[index]} of {self.row.job_id}", self._tasks[index].n)
        except BadReference as error:
            raise InvalidInput(f"continue_from: {error}") from error

    async def sample(self, index: int, number: int) -> SourceSample:
        """As of one moment. Raises InvalidInput when nothing was generated, ContractViolation, Unavailable."""
        task = self._tasks[index]
        state, output = await self._output(index, number, task)
        name = task_name(task, index)
        if not output:
            raise InvalidInput(
                f"continue_from: task {name} of {self.row.job_id} has no generated tokens to go on from; it is {state}"
            )
        ids = await self._input(index)
        origin = Origin(self.row.job_id, name, index, number, len(ids) // 4, len(output) // 4, state)
        return SourceSample(task, ids, output, origin)

    async def _output(self, index: int, number: int, task: Task) -> tuple[str, bytes]:
        """Its state and the ids it has."""
        partial = await self._store.partial(self.row.job, index, task.n)
        entry = partial.entry
        if entry.letter == RUNS:
            data = partial.samples[number].data
            whole = np.frombuffer(data[: len(data) // RECORD_BYTES * RECORD_BYTES], "<i4")
            return "running", whole[::2].tobytes()
        state = STATES.get(entry.letter) or ("cancelled" if self.row.cancelled else "queued")
        return state, await self._settled(index, number, entry)

    async def _settled(self, index: int, number: int, entry: Entry) -> bytes:
        if not entry.output_tokens:
            return b""
        result = await in_job_store(self._files.result, self._place, index, entry.term)
        outputs = result.outputs()
        return np.array(outputs[number] if number < len(outputs) else [], "<i4").tobytes()

    async def _input(self, index: int) -> bytes:
        """A text that was never tokenized here (by an older release) is now."""
        kept = await in_job_store(self._files.input, self._place, index)
        if kept is not None:
            return np.array(kept.ids, "<i4").tobytes()
        task = await in_job_store(self._files.task, self._place, index, self._offsets)
        if task.ids is not None:
            return task.ids
        if task.prompt is None:
            raise ContractViolation(f"the input of task {index} of {self.row.job_id} is missing")
        return await tokenized(self._generations, self.row.job.pool, task.prompt)


class Sources:
    """All jobs that one request of a tenant continues, each opened once."""

    def __init__(self, store: JobStore, files: JobFiles, generations: Generations, tenant_id: str) -> None:
        self._store = store
        self._files = files
        self._generations = generations
        self._tenant_id = tenant_id
        self._known: dict[str, Source] = {}
        self._tasks = 0  # of these

    async def get(self, job_id: str) -> Source:
        """Raises MissingResource, with the tenant's own latest jobs: also for another tenant's; InvalidInput
        for too many jobs."""
        if job_id not in self._known:
            try:
                row = await self._store.owned(job_id, self._tenant_id)
            except MissingResource as error:
                raise MissingResource(f"continue_from: {error.message}; {await self._candidates()}") from error
            self._count(row)
            source = Source(self._store, self._files, self._generations, row)
            await source.open()
            self._known[job_id] = source
        return self._known[job_id]

    def _count(self, row: JobRow) -> None:
        """Raises InvalidInput."""
        self._tasks += row.number("tasks")
        if self._tasks > MOST_TASKS:
            raise InvalidInput(
                f"continue_from: the jobs it names have more than {MOST_TASKS} tasks together; continue fewer at once"
            )

    async def _candidates(self) -> str:
        async for rows in self._store.of_tenant(self._tenant_id):
            names = [row.job_id for row in rows[:JOBS_SHOWN]]
            return f"your latest jobs are {', '.join(names)}" if names else "you have no jobs"
        return "you have no jobs"


def _bare(task: Task) -> Task:
    """Without what makes a line large: ten thousand of them are held while a job is continued."""
    return Task(
        task_id=task.task_id, n=task.n, temperature=task.temperature, top_p=task.top_p, lora_path=task.lora_path,
        adapter_name=task.adapter_name, adapter_path=task.adapter_path,
    )  # fmt: skip
