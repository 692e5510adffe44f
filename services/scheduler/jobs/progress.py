"""Tells those who watch a job of each of its changes. A lost message costs at most a few seconds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

from tinkermesh.v1 import jobs_pb2 as pb

from services.common.errors import Busy
from services.scheduler.jobs.book import JobBook
from services.scheduler.store.notices import Notices
from services.scheduler.waking import wait_at_most

REREAD_SECONDS = 5.0
PAUSE_SECONDS = 0.2
MOST_WATCHERS = 1_000


class JobProgress:
    def __init__(self, book: JobBook, notices: Notices) -> None:
        self._book = book
        self._watchers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._ending = False
        notices.on_settled(self._settled)
        notices.on_reconnect(self._wake_all)

    @property
    def watchers(self) -> int:
        return sum(len(events) for events in self._watchers.values())

    async def watch(self, job_id: str, tenant_id: str) -> AsyncIterator[pb.Job]:
        """Until it has ended, is deleted, or the replica ends. Raises MissingResource, Busy, Unavailable."""
        if self.watchers >= MOST_WATCHERS:
            raise Busy(f"{MOST_WATCHERS} jobs are watched through this scheduler; ask for the job instead")
        wake = asyncio.Event()
        self._watchers[job_id].add(wake)
        try:
            last = None
            while not self._ending:
                job = await self._book.get(job_id, tenant_id)
                if job != last:
                    yield job
                if job.ended_unix_ms:
                    return
                last = job
                await _changed(wake)
        finally:
            self._watchers[job_id].discard(wake)
            if not self._watchers[job_id]:
                del self._watchers[job_id]

    def end_all(self) -> None:
        self._ending = True
        self._wake_all()

    def _settled(self, pool: str, words: list[str]) -> None:
        for word in words:
            if word.startswith("#") and word[1:] in self._watchers:
                for event in self._watchers[word[1:]]:
                    event.set()

    def _wake_all(self) -> None:
        for events in self._watchers.values():
            for event in events:
                event.set()


async def _changed(wake: asyncio.Event) -> None:
    """At most a few looks a second, however fast its tasks settle."""
    await asyncio.sleep(PAUSE_SECONDS)
    await wait_at_most(wake, REREAD_SECONDS)
    wake.clear()
