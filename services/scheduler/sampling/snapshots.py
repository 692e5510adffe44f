"""What happens when a sampler snapshot was published: its session is bound, the samplers load it."""

from __future__ import annotations

import logging

from services.common.errors import Gone, UnknownId
from services.common.ids import SamplingSessionId, parse_model_id
from services.common.tinker_path import parse_tinker_path
from services.scheduler.ports import TrainerDirectory
from services.scheduler.sampling.adapters import adapter_ref
from services.scheduler.sampling.fleet import Fleet
from services.scheduler.sampling.sessions import SamplingSessions
from services.scheduler.store.sampling import SamplingSession

log = logging.getLogger(__name__)


class Snapshots:
    """Implements ports.SnapshotSink."""

    def __init__(self, sampling_sessions: SamplingSessions, directory: TrainerDirectory, fleet: Fleet) -> None:
        self._sampling_sessions = sampling_sessions
        self._directory = directory
        self._fleet = fleet

    async def published(
        self, pool: str, tenant_id: str, path: str, version_directory: str, sampling_session_seq_id: int | None
    ) -> str:
        """Raises KeyConflict when the sampling session's key already names another target."""
        model_id = parse_tinker_path(path).model_id
        adapter = adapter_ref(model_id, version_directory)
        bound = ""
        if sampling_session_seq_id is not None:
            facts = await self._directory.facts(pool)
            session_id = parse_model_id(model_id).session_id
            identity = SamplingSessionId(session_id, sampling_session_seq_id, pool)
            session = SamplingSession(
                sampling_session_id=str(identity),
                tenant_id=tenant_id,
                session_id=session_id,
                base_model=facts.base_model,
                model_path=path,
                adapter_name=adapter.name,
                adapter_path=adapter.path,
            )
            bound = await self._bind(pool, session, sampling_session_seq_id)
        await self._fleet.push(pool, adapter)
        return bound

    async def _bind(self, pool: str, session: SamplingSession, seq_id: int) -> str:
        try:
            return await self._sampling_sessions.bind(pool, session, seq_id)
        except (UnknownId, Gone) as error:
            # The save was accepted before its session ended: it succeeds, nobody can sample from it.
            log.info("snapshot %s has no open session to sample in: %s", session.model_path, error)
            return session.sampling_session_id
