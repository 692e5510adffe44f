"""Jobs that lie in the store and that Redis does not know: of an older release, or from before Redis lost them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.common.errors import ContractViolation
from services.common.ids import parse_job_id
from services.scheduler import metrics
from services.scheduler.jobs.atomic import in_job_store
from services.scheduler.jobs.files import CANCELLED as CANCELLED_MARK
from services.scheduler.jobs.files import JobFiles, Place
from services.scheduler.jobs.records import Header
from services.scheduler.store.jobs import CANCELLED, DONE, FAILED, Entry, JobStore, NewJob

log = logging.getLogger(__name__)

PLACES_PER_READ = 200
_LETTERS = {"failed": FAILED, "cancelled": CANCELLED}


@dataclass(slots=True)
class Found:
    header: Header
    count: int = 0
    settled: dict[int, Entry] = field(default_factory=dict)


async def restore(store: JobStore, files: JobFiles, pool: str, keep_ms: int) -> int:
    """How many there were. What cannot be read is told in the log and left where it is. Raises Unavailable."""
    places = await in_job_store(files.places, pool)
    restored = 0
    for first in range(0, len(places), PLACES_PER_READ):
        some = places[first : first + PLACES_PER_READ]
        known = await store.known([parse_job_id(place.job_id) for place in some])
        for place in [place for place, there in zip(some, known, strict=True) if not there]:
            restored += await _restore(store, files, place, keep_ms)
    return restored


async def _restore(store: JobStore, files: JobFiles, place: Place, keep_ms: int) -> bool:
    try:
        found = await in_job_store(_read, files, place)
    except ContractViolation as error:
        log.error("%s is left out: %s", place.job_id, error)
        metrics.jobs_torn.labels(place.pool).inc()
        return False
    if found is None:
        return False
    header = found.header
    new = NewJob(
        parse_job_id(place.job_id), header.tenant_id, header.fingerprint, place.directory, found.count, header.name,
        header.base_model, "", header.created_unix_ms,
    )  # fmt: skip
    await store.admit(new, 0, keep_ms, found.settled)
    await store.list_for(header.tenant_id, place.job_id, header.created_unix_ms)
    log.info("%s is back with %d tasks, %d of them settled", place.job_id, found.count, len(found.settled))
    return True


def _read(files: JobFiles, place: Place) -> Found | None:
    """None for one that was never admitted. Raises ContractViolation for one that is torn."""
    if "." in place.directory and not files.marked(place):
        return None
    found = Found(files.header(place))
    if found.header.job_id != place.job_id:
        raise ContractViolation(f"its header says {found.header.job_id[:100]!r}")
    for task in files.tasks(place):
        if task.error:
            found.settled[found.count] = Entry(FAILED, message=task.error)
        found.count += 1
    if not found.count or found.header.count not in (0, found.count):
        raise ContractViolation(f"{found.count} of its {found.header.count} tasks are there")
    found.settled.update(_settled(files, place, range(found.count)))
    if found.header.state == "cancelled" or files.marked(place, CANCELLED_MARK):
        found.settled = {index: found.settled.get(index, Entry(CANCELLED)) for index in range(found.count)}
    return found


def _settled(files: JobFiles, place: Place, indexes: Sequence[int]) -> dict[int, Entry]:
    """By their results; a torn one is generated again."""
    settled: dict[int, Entry] = {}
    for index, term in files.results(place).items():
        if index not in indexes:
            continue
        try:
            result = files.result(place, index, term)
        except ContractViolation as error:
            log.error("task %d of %s is run again: %s", index, place.job_id, error)
            metrics.jobs_torn.labels(place.pool).inc()
            continue
        tokens = sum(len(ids) for ids in result.outputs())
        prompt = result.usage.prompt_tokens if result.usage else 0
        message = result.error.message if result.error else ""
        settled[index] = Entry(_LETTERS.get(result.state, DONE), term, prompt, tokens, message)
    return settled
