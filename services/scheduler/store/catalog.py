"""A tenant's catalog in Redis: typed calls of functions/catalog.lua, and the sweep's index of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis.asyncio import Redis

from services.common.clock import now_ms
from services.common.tinker_path import TinkerPath
from services.scheduler.store import keys
from services.scheduler.store.catalog_entries import (
    CheckpointEntry,
    Doomed,
    RunEntry,
    RunFacts,
    SessionEntry,
    checkpoint_id,
    checkpoint_of,
    doomed_of,
    pairs,
    run_of,
    session_of,
)
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

ENTRIES_PER_CALL = 100
RUNS, CHECKPOINTS, SESSIONS = "runs", "cks", "sessions"


class CatalogStore:
    """Every method that writes is one atomic transition of one tenant, and may be repeated."""

    def __init__(self, redis: Redis, functions: Functions) -> None:
        self._redis = cast("Any", redis)
        self._call = functions.call

    # ---- runs and checkpoints ----------------------------------------------------------------

    async def add_run(self, tenant_id: str, run_id: str, created_ms: int, facts: RunFacts, project: str = "") -> None:
        await self._call("catalog_add_run", [keys.tenant_prefix(tenant_id)], run_id, created_ms, project, *facts.flat())

    async def add_checkpoint(self, tenant_id: str, entry: CheckpointEntry, run: RunFacts) -> None:
        """Idempotent by version: what its owner changed since (ttl, public) stays."""
        head = (
            checkpoint_id(entry.path),
            entry.version,
            entry.created_ms,
            entry.size_bytes,
            entry.expires_ms,
            entry.metadata,
        )
        await self._call("catalog_add_checkpoint", [keys.tenant_prefix(tenant_id)], *head, *run.flat())
        if entry.expires_ms:
            await self._expect(tenant_id, entry.expires_ms)

    async def checkpoint(self, tenant_id: str, path: TinkerPath) -> CheckpointEntry | None:
        """None when it was never registered; a doomed one is answered as such."""
        with reaching_redis():
            flat = await self._redis.hgetall(keys.catalog_checkpoint(tenant_id, checkpoint_id(path)))
        return checkpoint_of(checkpoint_id(path), flat) if flat else None

    async def set_public(self, tenant_id: str, path: TinkerPath, public: bool) -> None:
        """Raises MissingResource."""
        await self._call("catalog_set_public", [keys.tenant_prefix(tenant_id)], checkpoint_id(path), int(public))

    async def set_ttl(self, tenant_id: str, path: TinkerPath, ttl_ms: int | None) -> None:
        """From now on; None = for ever. Raises MissingResource."""
        ttl = "" if ttl_ms is None else str(ttl_ms)
        await self._expect(tenant_id, 0)
        expires = int(await self._call("catalog_set_ttl", [keys.tenant_prefix(tenant_id)], checkpoint_id(path), ttl))
        if expires:
            await self._expect(tenant_id, expires)

    async def doom(self, tenant_id: str, path: TinkerPath) -> str:
        """Unlists a checkpoint; answers the version whose files may go, "" when there is none.

        Until `forget` the sweep counts it among its work, so a deletion that broke off is completed.
        """
        await self._expect(tenant_id, 0)
        version = cast("bytes", await self._call("catalog_doom", [keys.tenant_prefix(tenant_id)], checkpoint_id(path)))
        if version:
            await self._expect(tenant_id, 0)
        return version.decode()

    async def forget(self, tenant_id: str, doomed: Doomed) -> None:
        await self._call("catalog_forget", [keys.tenant_prefix(tenant_id)], checkpoint_id(doomed.path), doomed.version)

    async def run(self, tenant_id: str, run_id: str) -> RunEntry | None:
        found = await self._call("catalog_run", [keys.tenant_prefix(tenant_id)], run_id)
        return run_of(found) if found[1] else None

    async def runs(self, tenant_id: str, project: str, offset: int, limit: int) -> tuple[int, list[RunEntry]]:
        index = f"project_runs:{project}" if project else RUNS
        total, page = await self._page(tenant_id, index, "run", offset, limit)
        return total, [run_of(entry) for entry in page]

    async def checkpoints(
        self, tenant_id: str, run_id: str, offset: int, limit: int
    ) -> tuple[int, list[CheckpointEntry]]:
        """Of one run, or of all runs with `run_id` ""; (total, the newest from `offset` on)."""
        total, page = await self._page(tenant_id, f"run_cks:{run_id}" if run_id else CHECKPOINTS, "ck", offset, limit)
        return total, [checkpoint_of(entry[0].decode(), pairs(entry[1])) for entry in page]

    # ---- what is due -------------------------------------------------------------------------

    async def tenants_due(self, limit: int) -> list[str]:
        """Tenants of whom something may be past its time."""
        with reaching_redis():
            found = await self._redis.zrange(keys.CATALOG_DUE, "-inf", now_ms(), byscore=True, offset=0, num=limit)
        return [name.decode() for name in found]

    async def due(self, tenant_id: str, limit: int) -> tuple[list[Doomed], int]:
        """(versions whose files may go, when the next checkpoint is due in unix ms or 0)."""
        doomed, due = await self._call("catalog_due", [keys.tenant_prefix(tenant_id)], limit)
        return [doomed_of(member.decode()) for member in doomed], int(due or 0)

    async def rest_until_due(self, tenant_id: str) -> None:
        """The tenant is asked again when its next checkpoint is due.

        Taken out of the index before that is read: a new time that arrives between is not lost.
        """
        with reaching_redis():
            await self._redis.zrem(keys.CATALOG_DUE, tenant_id)
        doomed, due = await self.due(tenant_id, 1)
        if doomed or due:
            await self._expect(tenant_id, 0 if doomed else due)

    async def _expect(self, tenant_id: str, due_ms: int) -> None:
        """Told before a change, so that one whose process died behind it is found; and after it, for a sweep may
        have come between."""
        with reaching_redis():
            await self._redis.zadd(keys.CATALOG_DUE, {tenant_id: due_ms}, lt=True)

    # ---- sessions ----------------------------------------------------------------------------

    async def add_session(self, tenant_id: str, session_id: str, created_ms: int, fields: Mapping[str, str]) -> None:
        flat = [part for item in fields.items() for part in item]
        await self._call("catalog_add_session", [keys.tenant_prefix(tenant_id)], session_id, created_ms, *flat)

    async def end_session(self, tenant_id: str, session_id: str, status: str, reason: str, detail: str) -> None:
        await self._call("catalog_end_session", [keys.tenant_prefix(tenant_id)], session_id, status, reason, detail)

    async def assign_project(self, tenant_id: str, session_id: str, project: str) -> None:
        """Raises MissingResource."""
        await self._call("catalog_assign_project", [keys.tenant_prefix(tenant_id)], session_id, project)

    async def session(self, tenant_id: str, session_id: str) -> SessionEntry | None:
        with reaching_redis():
            flat = await self._redis.hgetall(keys.catalog_session(tenant_id, session_id))
        return session_of(session_id, flat) if flat else None

    async def sessions(self, tenant_id: str, offset: int, limit: int) -> tuple[int, list[SessionEntry]]:
        total, page = await self._page(tenant_id, SESSIONS, "session", offset, limit)
        return total, [session_of(entry[0].decode(), pairs(entry[1])) for entry in page]

    async def sessions_behind(self, tenant_id: str, before: tuple[int, str] | None, limit: int) -> list[SessionEntry]:
        """The newest sessions, or the newest behind (created_ms, session id) of an earlier page."""
        created, last = ("+inf", "") if before is None else (str(before[0]), before[1])
        found = await self._call("catalog_sessions_behind", [keys.tenant_prefix(tenant_id)], created, last, limit)
        return [session_of(entry[0].decode(), pairs(entry[1])) for entry in found]

    async def session_sizes(self, tenant_id: str, session_ids: Sequence[str]) -> list[tuple[int, int]]:
        """(checkpoints, their bytes) of each."""
        found = await self._call("catalog_session_sizes", [keys.tenant_prefix(tenant_id)], *session_ids)
        return [(int(count), int(size)) for count, size in found]

    async def session_runs(self, tenant_id: str, session_id: str) -> list[str]:
        with reaching_redis():
            found = await self._redis.zrange(keys.catalog_session_runs(tenant_id, session_id), 0, -1)
        return [name.decode() for name in found]

    async def last_requests(self, runs: Sequence[RunEntry]) -> list[int]:
        """When each run's model was last asked something, unix ms; 0 where its row is gone."""
        with reaching_redis():
            pipe = self._redis.pipeline(transaction=False)
            for run in runs:
                pipe.hget(keys.model(run.facts.pool, run.run_id), "last_request_ms")
            found = await pipe.execute()
        return [int(value or 0) for value in found]

    async def _page(self, tenant_id: str, index: str, kind: str, offset: int, limit: int) -> tuple[int, list[Any]]:
        """In steps: an entry carries up to 64 KiB of metadata, and Redis waits while one call reads."""
        total, page = 0, list[Any]()
        while len(page) < limit:
            step = min(limit - len(page), ENTRIES_PER_CALL)
            arguments = (index, kind, offset + len(page), step)
            total, entries = await self._call("catalog_page", [keys.tenant_prefix(tenant_id)], *arguments)
            page.extend(entries)
            if len(entries) < step:
                break
        return int(total), page
