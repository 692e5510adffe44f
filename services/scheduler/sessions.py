"""Sessions: created once per key, kept by heartbeats, ended with all their children."""

from __future__ import annotations

import logging

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import Gone, InvalidInput, UnknownId
from services.common.ids import SamplingSessionId, is_session_id, key_hash, new_session_id, parse_sampling_session_id
from services.scheduler.ports import ModelBook
from services.scheduler.sampling.cancel import Cancellation
from services.scheduler.session_directory import COPY
from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.sessions import SessionStore
from services.scheduler.tenancy.places import SessionPlaces

log = logging.getLogger(__name__)

KEY_LIFETIME_MS = 86_400_000
FINISHED = "session finished; create a new session"
LEASE_EXPIRED = "lease expired: no heartbeat of its session arrived in time; create a new session"


class Sessions:
    def __init__(
        self,
        store: SessionStore,
        models: ModelBook,
        samples: Cancellation,
        places: SessionPlaces,
        catalog: CatalogStore,
        *,
        keep_ms: int,
    ) -> None:
        self._store = store
        self._places = places
        self._catalog = catalog
        self._models = models
        self._samples = samples
        self._keep_ms = keep_ms

    async def create(self, request: pb.CreateSessionRequest) -> str:
        """The same id for the same (tenant, idempotency key). Raises KeyConflict when another field differs, Busy."""
        if not request.tenant_id:
            raise InvalidInput("tenant_id: missing")
        key = request.idempotency_key
        hashed = key_hash(request.tenant_id, key) if key else ""
        session_id = await self._places.take(request.tenant_id, hashed, new_session_id(), KEY_LIFETIME_MS)
        tags = "\n".join(request.tags)
        shown = {"tags": tags, "metadata": request.user_metadata_json, "display_name": request.display_name}
        created_ms = await self._store.create(
            session_id, request.tenant_id, {**shown, "sdk_version": request.sdk_version}
        )
        listed = {**shown, "project": request.project_id}
        await self._catalog.add_session(request.tenant_id, session_id, created_ms, listed)
        return session_id

    async def beat(self, session_id: str, tenant_id: str) -> None:
        """Raises Gone when the session is certainly gone, Forbidden, Unavailable while unsure."""
        if not is_session_id(session_id):
            raise Gone(f"session_id {session_id[:64]!r} is not a session of this mesh")
        await self._store.beat(session_id, tenant_id)

    async def finish(self, request: pb.FinishSessionRequest) -> None:
        """No new model or sample; accepted commands settle, then the models close. Raises UnknownId, Forbidden."""
        if not is_session_id(request.session_id):
            raise UnknownId(f"session_id {request.session_id[:64]!r} is not a session of this mesh")
        detail = f"{request.reason}: {request.detail}" if request.detail else request.reason
        try:
            before = await self._store.finish(request.session_id, request.tenant_id, detail)
        except Gone as error:
            raise UnknownId(f"session_id {request.session_id}: {error.message}") from error
        if before != "expired":
            await self.close_children(request.session_id, "finished")

    async def expire(self, session_id: str, last_beat_ms: int) -> bool:
        """Ends a session silent since `last_beat_ms` (or completes an end that was interrupted)."""
        state, beat_ms = await self._store.expire(session_id, last_beat_ms, LEASE_EXPIRED)
        if state == "open":
            await self._store.beat_again(session_id, beat_ms)
            return False
        await self.close_children(session_id, state)
        return True

    async def close_children(self, session_id: str, state: str) -> None:
        """Idempotent; one close per pool, then the session leaves the index."""
        finished = state == "finished"
        reason = FINISHED if finished else LEASE_EXPIRED
        await self._note_end(session_id)
        for sampling_session_id in await self._store.children(session_id, "samplers"):
            await self._close_sampling(parse_sampling_session_id(sampling_session_id), reason, settle=finished)
        for pool in await self._store.children(session_id, "models"):
            if pool != COPY:
                await self._models.close_session(pool, session_id, reason, settle_accepted=finished)
        await self._places.free(session_id)
        await self._store.forget(session_id, self._keep_ms)
        log.info("session %s is %s; its models and samplers are closed", session_id, state)

    async def _note_end(self, session_id: str) -> None:
        """In the catalog, where the session stays listed."""
        row = await self._store.row(session_id)
        if row is not None:
            reason, _, detail = row.end_reason.partition(": ") if row.state == "finished" else ("", "", "")
            await self._catalog.end_session(row.tenant_id, session_id, row.state, reason, detail)

    async def close_late_model(self, session_id: str, pool: str) -> None:
        """A create that was claimed before its session ended may arrive after the close: close again."""
        row = await self._store.row(session_id)
        if row is not None and row.state == "open":
            return
        finished = row is not None and row.state == "finished"
        reason = FINISHED if finished else LEASE_EXPIRED
        await self._models.close_session(pool, session_id, reason, settle_accepted=finished)

    async def _close_sampling(self, identity: SamplingSessionId, reason: str, *, settle: bool) -> None:
        await self._samples.end_session(identity.pool, str(identity), reason, self._keep_ms, cancel_open=not settle)
