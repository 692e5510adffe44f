"""Sampling sessions: who may sample from which pinned version."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import Forbidden, Gone, KeyConflict, UnknownId
from services.common.ids import SamplingSessionId, parse_sampling_session_id
from services.scheduler.pools import Pools, same_base_model
from services.scheduler.ports import ArtifactReader, TrainerDirectory
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.sampling.targets import Targets
from services.scheduler.store.sampling import SamplingSession, SamplingStore
from services.scheduler.store.sessions import SessionStore


class SamplingSessions:
    def __init__(
        self,
        store: SamplingStore,
        sessions: SessionStore,
        artifacts: ArtifactReader,
        directory: TrainerDirectory,
        presence: SamplerPresence,
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._directory = directory
        self._presence = presence
        self._targets = Targets(artifacts, Pools(directory))

    async def create(self, request: pb.CreateSamplingSessionRequest) -> str:
        """The sampling session id of this key; a retry answers the same.

        Raises UnknownId, Forbidden, InvalidInput, MissingResource, KeyConflict.
        """
        await self._sessions.owned(request.session_id, request.tenant_id)
        held = await self._sessions.child(request.session_id, "samplers", request.sampling_session_seq_id)
        if held is not None:
            return await self._repeated(request, held)
        pool, session = await self._resolve(request)
        await self._presence.check(pool, "model_path" if request.model_path else "base_model")
        return await self.bind(pool, session, request.sampling_session_seq_id)

    async def get(self, sampling_session_id: str, tenant_id: str) -> tuple[SamplingSession, types.PoolFacts]:
        """Raises UnknownId, Forbidden."""
        pool = parse_sampling_session_id(sampling_session_id).pool
        session = await self._store.session(pool, sampling_session_id)
        if session is None:
            raise UnknownId(f"sampling_session_id {sampling_session_id} is not known, or its session is gone")
        if session.tenant_id != tenant_id:
            raise Forbidden(f"sampling_session_id {sampling_session_id} belongs to another tenant")
        return session, await self._directory.facts(pool)

    async def bind(self, pool: str, session: SamplingSession, seq_id: int) -> str:
        """The row first, then the key that names it: whoever finds the key finds the row.

        Raises KeyConflict when the key names another target.
        """
        row = await self._store.open(pool, session)
        same = row.same_target(session.base_model, session.model_path)
        held = await self._claim(session, seq_id) if same else ""
        if held == session.sampling_session_id:
            return held
        raise KeyConflict(
            f"sampling_session_seq_id {seq_id} already names another sampling session; "
            f"use a new one for {session.model_path or session.base_model}"
        )

    async def alias(self, tenant_id: str, session_id: str, seq_id: int, first_seq_id: int, pool: str) -> None:
        """A retried unnamed save came with another key: both name the first one's sampling session."""
        first = str(SamplingSessionId(session_id, first_seq_id, pool))
        await self._sessions.claim(session_id, tenant_id, "samplers", seq_id, first)

    async def _claim(self, session: SamplingSession, seq_id: int) -> str:
        try:
            return await self._sessions.claim(
                session.session_id, session.tenant_id, "samplers", seq_id, session.sampling_session_id
            )
        except (UnknownId, Gone):
            pool = parse_sampling_session_id(session.sampling_session_id).pool
            await self._store.close(pool, session.sampling_session_id, "its session has ended", 0)
            raise

    async def _repeated(self, request: pb.CreateSamplingSessionRequest, held: str) -> str:
        session, facts = await self.get(held, request.tenant_id)
        same_base = not request.base_model or same_base_model(facts, request.base_model)
        if request.model_path == session.model_path and same_base and (request.model_path or request.base_model):
            return held
        raise KeyConflict(
            f"sampling_session_seq_id {request.sampling_session_seq_id} was already used for "
            f"{session.model_path or session.base_model}; use a new one"
        )

    async def _resolve(self, request: pb.CreateSamplingSessionRequest) -> tuple[str, SamplingSession]:
        target = await self._targets.of(request.tenant_id, request.base_model, request.model_path)
        return target.facts.pool, _session(request, target.facts, target.adapter or types.AdapterRef())


def _session(
    request: pb.CreateSamplingSessionRequest, facts: types.PoolFacts, adapter: types.AdapterRef
) -> SamplingSession:
    identity = SamplingSessionId(request.session_id, request.sampling_session_seq_id, facts.pool)
    return SamplingSession(
        sampling_session_id=str(identity),
        tenant_id=request.tenant_id,
        session_id=request.session_id,
        base_model=facts.base_model,
        model_path=request.model_path,
        adapter_name=adapter.name,
        adapter_path=adapter.path,
    )
