"""Sessions as their owner looks back on them, long after they ended."""

from __future__ import annotations

from collections.abc import Sequence

from tinkermesh.v1 import catalog_pb2 as pb

from services.common.errors import Forbidden, MissingResource
from services.common.ids import is_session_id
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import SessionEntry
from services.scheduler.store.sessions import SessionStore

LOOKED_AT_ONCE = 200
LOOKED_AT_MOST = 5_000
"""Sessions one search looks at; its answer says where to go on."""

Place = tuple[int, str]  # created_ms, session id


class SessionCatalog:
    def __init__(self, store: CatalogStore, sessions: SessionStore) -> None:
        self._store = store
        self._sessions = sessions

    async def page(self, tenant_id: str, offset: int, limit: int) -> tuple[int, list[str]]:
        total, entries = await self._store.sessions(tenant_id, offset, limit)
        return total, [entry.session_id for entry in entries]

    async def get(self, session_id: str, tenant_id: str) -> pb.SessionSummary:
        """Raises MissingResource, Forbidden."""
        entry = await self._owned(session_id, tenant_id)
        summary = (await self._summaries(tenant_id, [entry]))[0]
        summary.training_run_ids.extend(await self._store.session_runs(tenant_id, session_id))
        summary.sampling_session_ids.extend(await self._sessions.children(session_id, "samplers"))
        return summary

    async def assign_project(self, session_id: str, tenant_id: str, project: str) -> None:
        """Raises MissingResource, Forbidden."""
        await self._owned(session_id, tenant_id)
        await self._store.assign_project(tenant_id, session_id, project)

    async def search(self, request: pb.SearchSessionsRequest) -> pb.SearchSessionsReply:
        """The newest matches, at most `limit`, and where to look on."""
        place: Place | None = (request.before_unix_ms, request.before_session_id) if request.before_session_id else None
        found: list[SessionEntry] = []
        for _ in range(LOOKED_AT_MOST // LOOKED_AT_ONCE):
            batch = await self._store.sessions_behind(request.tenant_id, place, LOOKED_AT_ONCE)
            for entry in batch:
                place = (entry.created_ms, entry.session_id)
                found.extend([entry] if matches(entry, request) else [])
                if len(found) == request.limit:
                    return await self._reply(request.tenant_id, found, place)
            if len(batch) < LOOKED_AT_ONCE:
                return await self._reply(request.tenant_id, found, None)
        return await self._reply(request.tenant_id, found, place)

    async def _reply(
        self, tenant_id: str, found: Sequence[SessionEntry], place: Place | None
    ) -> pb.SearchSessionsReply:
        reply = pb.SearchSessionsReply(sessions=await self._summaries(tenant_id, found))
        if place is not None:
            reply.next_unix_ms, reply.next_session_id = place
        return reply

    async def _summaries(self, tenant_id: str, entries: Sequence[SessionEntry]) -> list[pb.SessionSummary]:
        sizes = await self._store.session_sizes(tenant_id, [entry.session_id for entry in entries]) if entries else []
        return [_summary(entry, tenant_id, *size) for entry, size in zip(entries, sizes, strict=True)]

    async def _owned(self, session_id: str, tenant_id: str) -> SessionEntry:
        entry = await self._store.session(tenant_id, session_id)
        if entry is not None:
            return entry
        row = await self._sessions.row(session_id) if is_session_id(session_id) else None
        if row is not None and row.tenant_id != tenant_id:
            raise Forbidden(f"session {session_id} belongs to another tenant")
        raise MissingResource(f"session {session_id[:64]!r} is not known to this mesh")


def matches(entry: SessionEntry, request: pb.SearchSessionsRequest) -> bool:
    named = [entry.session_id == request.session_id] if request.session_id else []
    if request.display_name:
        words = request.display_name.lower().split()
        named.append(bool(words) and all(word in entry.display_name.lower() for word in words))
    if named and not any(named):
        return False
    if request.project_ids and entry.project not in request.project_ids:
        return False
    if any(entry.metadata_value(key) != value for key, value in request.user_metadata.items()):
        return False
    return not request.statuses or any(_has_status(entry, wanted) for wanted in request.statuses)


def _has_status(entry: SessionEntry, wanted: pb.SessionStatusFilter) -> bool:
    if entry.status != wanted.status:
        return False
    return not wanted.finish_reasons or entry.reason in wanted.finish_reasons


def _summary(entry: SessionEntry, tenant_id: str, checkpoints: int, size_bytes: int) -> pb.SessionSummary:
    return pb.SessionSummary(
        session_id=entry.session_id,
        created_unix_ms=entry.created_ms,
        tenant_id=tenant_id,
        project_id=entry.project,
        status=entry.status,
        finish_reason=entry.reason,
        finish_detail=entry.detail,
        user_metadata_json=entry.metadata,
        display_name=entry.display_name,
        checkpoints_count=checkpoints,
        checkpoint_bytes=size_bytes,
    )
