"""A job's directory in the shared store.

    <root>/jobs/<pool>/<job id without its pool>.<upload>/
        job.json                      who, when, which model
        tasks.jsonl                   one task a line, in order
        input_<index>.json            ids of a text, or of a continuation
        result_<index>.<term>.json    what became of a task; Redis names the term that counts
        admitted, cancelled           marks of what counts even if Redis should forget it

It is prepared beside its name and appears by one rename. Every name is made of an id's own grammar and of
numbers, so no path of a client leads out of it. Methods block: call them by atomic.in_job_store.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from services.common.errors import ContractViolation
from services.common.ids import JobId
from services.common.store import TEMPORARY_PREFIX
from services.scheduler.jobs.atomic import decoded, put, sync, write_synced
from services.scheduler.jobs.records import Header, Input, Result, Task

HEADER, TASKS, ADMITTED, CANCELLED = "job.json", "tasks.jsonl", "admitted", "cancelled"
_DIRECTORY = re.compile(r"job-([0-9a-f]{32})(?:\.[0-9a-f]{8})?")
_RESULT = re.compile(r"result_([0-9]{4,6})(?:\.([0-9]{1,16}))?\.json")


class Place(NamedTuple):
    """Where a job's files are."""

    pool: str
    directory: str

    @property
    def job_id(self) -> str:
        match = _DIRECTORY.fullmatch(self.directory)
        return str(JobId(match[1], self.pool)) if match else ""


class Draft:
    """A job's directory while it is written: `add` in the order of the tasks, then `publish` or `discard`."""

    def __init__(self, stage: Path, final: Path, place: Place) -> None:
        self.place = place
        self._stage = stage
        self._final = final
        self._added = 0

    def add(self, tasks: Iterable[tuple[Task, Input | None]]) -> None:
        with (self._stage / TASKS).open("ab") as lines:
            for task, one in tasks:
                lines.write(msgspec.json.encode(task) + b"\n")
                if one is not None:
                    write_synced(self._stage / _input_name(self._added), msgspec.json.encode(one))
                self._added += 1

    def publish(self, header: Header) -> None:
        """On disk and under its name when it returns."""
        sync(self._stage / TASKS)
        write_synced(self._stage / HEADER, msgspec.json.encode(header))
        sync(self._stage)
        self._stage.rename(self._final)
        sync(self._final.parent)

    def discard(self) -> None:
        for path in (self._stage, self._final):
            shutil.rmtree(path, ignore_errors=True)


class JobFiles:
    def __init__(self, root: Path) -> None:
        self._root = root / "jobs"

    def path(self, place: Place) -> Path:
        """Raises ContractViolation for a name that is none of ours."""
        if not _DIRECTORY.fullmatch(place.directory):
            raise ContractViolation(f"{place.directory[:100]!r} is no directory of a job")
        return self._root / place.pool / place.directory

    # -- making one ----------------------------------------------------------------------

    def draft(self, job: JobId) -> Draft:
        place = Place(job.pool, f"job-{job.key}.{uuid.uuid4().hex[:8]}")
        stage = self._root / job.pool / f"{TEMPORARY_PREFIX}{place.directory}"
        stage.mkdir(parents=True)
        return Draft(stage, self.path(place), place)

    def mark(self, place: Place, mark: str = ADMITTED) -> None:
        """Repeatable."""
        path = self.path(place) / mark
        if not path.exists():
            put(path, b"")

    def marked(self, place: Place, mark: str = ADMITTED) -> bool:
        return (self.path(place) / mark).exists()

    def remove(self, place: Place) -> None:
        """Its name first. Repeatable."""
        path = self.path(place)
        trash = path.with_name(f"{TEMPORARY_PREFIX}{place.directory}_{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            path.rename(trash)
            shutil.rmtree(trash)

    # -- its parts -----------------------------------------------------------------------

    def header(self, place: Place) -> Header:
        return decoded((self.path(place) / HEADER).read_bytes(), Header, HEADER)

    def tasks(self, place: Place) -> Iterator[Task]:
        """In order. Raises ContractViolation."""
        path = self.path(place) / TASKS
        if not path.exists():
            yield from self.header(place).tasks
            return
        with path.open("rb") as file:
            for line in file:
                yield decoded(line, Task, TASKS)

    def offsets(self, place: Place) -> array[int]:
        """Where each line begins, and where the last one ends; empty for a job without tasks.jsonl."""
        found = array("Q")
        path = self.path(place) / TASKS
        if not path.exists():
            return found
        found.append(0)
        with path.open("rb") as file:
            for line in file:
                found.append(found[-1] + len(line))
        return found

    def task(self, place: Place, index: int, offsets: array[int]) -> Task:
        """Raises ContractViolation."""
        if not offsets:
            tasks = self.header(place).tasks
            if index >= len(tasks):
                raise ContractViolation(f"task {index} of this job is missing in {HEADER}")
            return tasks[index]
        if index + 1 >= len(offsets):
            raise ContractViolation(f"task {index} of this job is missing in {TASKS}")
        with (self.path(place) / TASKS).open("rb") as file:
            file.seek(offsets[index])
            return decoded(file.read(offsets[index + 1] - offsets[index]), Task, TASKS)

    def input(self, place: Place, index: int) -> Input | None:
        """None: there is none (yet). Raises ContractViolation."""
        path = self.path(place) / _input_name(index)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return decoded(data, Input, path.name)

    def put_input(self, place: Place, index: int, found: Input) -> None:
        put(self.path(place) / _input_name(index), msgspec.json.encode(found))

    def put_result(self, place: Place, index: int, term: int, result: Result) -> None:
        put(self.path(place) / _result_name(index, term), msgspec.json.encode(result))

    def result_data(self, place: Place, index: int, term: int) -> bytes:
        return (self.path(place) / _result_name(index, term)).read_bytes()

    def result(self, place: Place, index: int, term: int) -> Result:
        """Raises ContractViolation."""
        name = _result_name(index, term)
        return decoded(self.result_data(place, index, term), Result, name)

    # -- all of them ---------------------------------------------------------------------

    def places(self, pool: str) -> list[Place]:
        directory = self._root / pool
        names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
        return [Place(pool, name) for name in sorted(names) if _DIRECTORY.fullmatch(name)]

    def results(self, place: Place) -> dict[int, int]:
        """Index to the last term that wrote a result, 0 = by a release without terms."""
        found: dict[int, int] = {}
        for entry in self.path(place).iterdir():
            if match := _RESULT.fullmatch(entry.name):
                index, term = int(match[1]), int(match[2] or 0)
                found[index] = max(term, found.get(index, 0))
        return found

    def residues(self, pool: str, older_than_unix_seconds: float) -> list[Path]:
        """What attempts and removals left half-way, and jobs that were never admitted."""
        directory = self._root / pool
        entries = list(directory.iterdir()) if directory.is_dir() else []
        return [entry for entry in entries if self._is_residue(entry) and _changed(entry) < older_than_unix_seconds]

    def _is_residue(self, entry: Path) -> bool:
        if entry.name.startswith(TEMPORARY_PREFIX):
            return True
        return "." in entry.name and _DIRECTORY.fullmatch(entry.name) is not None and not (entry / ADMITTED).exists()


def _changed(entry: Path) -> float:
    """Unix seconds; of what went meanwhile: never."""
    try:
        return entry.lstat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _input_name(index: int) -> str:
    return f"input_{index:04d}.json"


def _result_name(index: int, term: int) -> str:
    return f"result_{index:04d}.{term}.json" if term else f"result_{index:04d}.json"
