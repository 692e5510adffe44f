"""A tenant's catalog in Redis: typed calls of functions/catalog.lua, and the sweep's index of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from tinkermesh.v1 import types_pb2 as types

from services.common.clock import now_ms
from services.common.tinker_path import SCHEME, TinkerPath
from services.scheduler.store import keys
from services.scheduler.store.functions import Functions
from services.scheduler.store.outages import reaching_redis

ENTRIES_PER_CALL = 100
RUNS, CHECKPOINTS, SESSIONS = "runs", "cks", "sessions"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run when it begins. `pool` is "" for a copy, which nobody trains."""

    base_model: str
    layout: types.AdapterLayout
    metadata: str = ""
    pool: str = ""

    def flat(self) -> list[str | bytes]:
        layout = self.layout.SerializeToString()
        return ["base_model", self.base_model, "layout", layout, "metadata", self.metadata, "pool", self.pool]


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    path: TinkerPath
    version: str  # name of its directory
    created_ms: int
    size_bytes: int
    expires_ms: int  # 0 = never
    metadata: str
    public: bool
    doomed: bool = False

    def alive(self) -> bool:
        return not self.doomed and (not self.expires_ms or self.expires_ms > now_ms())


@dataclass(frozen=True, slots=True)
class RunEntry:
    run_id: str
    facts: RunFacts
    created_ms: int
    project: str
    last_checkpoint: CheckpointEntry | None
    last_sampler_checkpoint: CheckpointEntry | None


@dataclass(frozen=True, slots=True)
class SessionEntry:
    session_id: str
    created_ms: int
    status: str  # active | finished | expired
    reason: str
    detail: str
    metadata: str
    display_name: str
    project: str

    def metadata_value(self, key: str) -> object:
        """None when there is no such key."""
        return msgspec.json.decode(self.metadata, type=dict[str, object]).get(key) if self.metadata else None


class Doomed(NamedTuple):
    path: TinkerPath
    version: str


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
        head = (_id(entry.path), entry.version, entry.created_ms, entry.size_bytes, entry.expires_ms, entry.metadata)
        await self._call("catalog_add_checkpoint", [keys.tenant_prefix(tenant_id)], *head, *run.flat())
        if entry.expires_ms:
            await self._expect(tenant_id, entry.expires_ms)

    async def checkpoint(self, tenant_id: str, path: TinkerPath) -> CheckpointEntry | None:
        """None when it was never registered; a doomed one is answered as such."""
        with reaching_redis():
            flat = await self._redis.hgetall(keys.catalog_checkpoint(tenant_id, _id(path)))
        return _checkpoint(_id(path), flat) if flat else None

    async def set_public(self, tenant_id: str, path: TinkerPath, public: bool) -> None:
        """Raises MissingResource."""
        await self._call("catalog_set_public", [keys.tenant_prefix(tenant_id)], _id(path), int(public))

    async def set_ttl(self, tenant_id: str, path: TinkerPath, ttl_ms: int | None) -> None:
        """From now on; None = for ever. Raises MissingResource."""
        ttl = "" if ttl_ms is None else str(ttl_ms)
        expires = int(await self._call("catalog_set_ttl", [keys.tenant_prefix(tenant_id)], _id(path), ttl))
        if expires:
            await self._expect(tenant_id, expires)

    async def doom(self, tenant_id: str, path: TinkerPath) -> str:
        """Unlists a checkpoint; answers the version whose files may go, "" when there is none.

        Until `forget` the sweep counts it among its work, so a deletion that broke off is completed.
        """
        version = cast("bytes", await self._call("catalog_doom", [keys.tenant_prefix(tenant_id)], _id(path)))
        if version:
            await self._expect(tenant_id, 0)
        return version.decode()

    async def forget(self, tenant_id: str, doomed: Doomed) -> None:
        await self._call("catalog_forget", [keys.tenant_prefix(tenant_id)], _id(doomed.path), doomed.version)

    async def run(self, tenant_id: str, run_id: str) -> RunEntry | None:
        found = await self._call("catalog_run", [keys.tenant_prefix(tenant_id)], run_id)
        return _run(found) if found[1] else None

    async def runs(self, tenant_id: str, project: str, offset: int, limit: int) -> tuple[int, list[RunEntry]]:
        index = f"project_runs:{project}" if project else RUNS
        total, page = await self._page(tenant_id, index, "run", offset, limit)
        return total, [_run(entry) for entry in page]

    async def checkpoints(
        self, tenant_id: str, run_id: str, offset: int, limit: int
    ) -> tuple[int, list[CheckpointEntry]]:
        """Of one run, or of all runs with `run_id` ""; (total, the newest from `offset` on)."""
        total, page = await self._page(tenant_id, f"run_cks:{run_id}" if run_id else CHECKPOINTS, "ck", offset, limit)
        return total, [_checkpoint(entry[0].decode(), _pairs(entry[1])) for entry in page]

    # ---- what is due -------------------------------------------------------------------------

    async def tenants_due(self, limit: int) -> list[str]:
        """Tenants of whom something may be past its time."""
        with reaching_redis():
            found = await self._redis.zrange(keys.CATALOG_DUE, "-inf", now_ms(), byscore=True, offset=0, num=limit)
        return [name.decode() for name in found]

    async def due(self, tenant_id: str, limit: int) -> tuple[list[Doomed], int]:
        """(versions whose files may go, when the next checkpoint is due in unix ms or 0)."""
        doomed, due = await self._call("catalog_due", [keys.tenant_prefix(tenant_id)], limit)
        return [_doomed(member.decode()) for member in doomed], int(due or 0)

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
        return _session(session_id, flat) if flat else None

    async def sessions(self, tenant_id: str, offset: int, limit: int) -> tuple[int, list[SessionEntry]]:
        total, page = await self._page(tenant_id, SESSIONS, "session", offset, limit)
        return total, [_session(entry[0].decode(), _pairs(entry[1])) for entry in page]

    async def sessions_behind(self, tenant_id: str, before: tuple[int, str] | None, limit: int) -> list[SessionEntry]:
        """The newest sessions, or the newest behind (created_ms, session id) of an earlier page."""
        created, last = ("+inf", "") if before is None else (str(before[0]), before[1])
        found = await self._call("catalog_sessions_behind", [keys.tenant_prefix(tenant_id)], created, last, limit)
        return [_session(entry[0].decode(), _pairs(entry[1])) for entry in found]

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


def _id(path: TinkerPath) -> str:
    return str(path).removeprefix(SCHEME)


def _path(checkpoint: str) -> TinkerPath:
    return TinkerPath(*checkpoint.split("/"))


def _doomed(member: str) -> Doomed:
    checkpoint, _, version = member.rpartition(" ")
    return Doomed(_path(checkpoint), version)


def _pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _checkpoint(checkpoint: str, row: Mapping[bytes, bytes]) -> CheckpointEntry:
    return CheckpointEntry(
        path=_path(checkpoint),
        version=row[b"version"].decode(),
        created_ms=int(row[b"created_ms"]),
        size_bytes=int(row[b"size"]),
        expires_ms=int(row[b"expires_ms"]),
        metadata=row[b"metadata"].decode(),
        public=row[b"public"] == b"1",
        doomed=b"doomed" in row,
    )


def _latest(entry: Sequence[Any]) -> CheckpointEntry | None:
    return _checkpoint(entry[0].decode(), _pairs(entry[1])) if entry else None


def _run(entry: Sequence[Any]) -> RunEntry:
    row = _pairs(entry[1])
    facts = RunFacts(
        base_model=row[b"base_model"].decode(),
        layout=types.AdapterLayout.FromString(row[b"layout"]),
        metadata=row[b"metadata"].decode(),
        pool=row[b"pool"].decode(),
    )
    return RunEntry(
        run_id=entry[0].decode(),
        facts=facts,
        created_ms=int(row[b"created_ms"]),
        project=row[b"project"].decode(),
        last_checkpoint=_latest(entry[2]),
        last_sampler_checkpoint=_latest(entry[3]),
    )


def _session(session_id: str, row: Mapping[bytes, bytes]) -> SessionEntry:
    def text(name: bytes) -> str:
        return row.get(name, b"").decode()

    return SessionEntry(
        session_id=session_id,
        created_ms=int(row[b"created_ms"]),
        status=text(b"status"),
        reason=text(b"reason"),
        detail=text(b"detail"),
        metadata=text(b"metadata"),
        display_name=text(b"display_name"),
        project=text(b"project"),
    )
