"""The seams inside the scheduler. Each is small; implementations are wired in parts/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.tinker_path import TinkerPath
from services.scheduler.artifacts import Artifact


class Admission(Protocol):
    """Accepts commands durably: one implementation for training keys, one for samples."""

    async def submit(self, request: pb.SubmitRequest, payload: bytes, traceparent: str) -> pb.SubmitReply:
        """Stores `payload` as segments, then claims the key and enqueues in one function call.

        Raises InvalidInput, KeyConflict, UnknownId, Forbidden, ModelClosed, Unavailable.
        """
        ...


class ModelBook(Protocol):
    """What sessions and the front need to know of models."""

    async def describe(self, model_id: str, tenant_id: str) -> pb.ModelInfo:
        """Raises UnknownId, Forbidden."""
        ...

    async def close_session(self, pool: str, session_id: str, reason: str, *, settle_accepted: bool) -> None:
        """Closes all models of a session in one pool; idempotent.

        With `settle_accepted`, already accepted commands run first (sessions/finish);
        without, pending ones fail with `reason` (lease expired), but never under a running unit.
        """
        ...

    async def queue_state(self, pool: str, model_id: str, seq: int) -> tuple[str, str]:
        """(active | paused_capacity, why the command `seq` has not run yet), both for a tenant's eyes."""
        ...


class ModelDirectory(Protocol):
    """Write-once: which pool a session's model lives in."""

    async def pool_of_model(self, session_id: str, model_seq_id: int) -> str | None:
        """None when no such model was ever created."""
        ...


class LeaderTask(Protocol):
    """Work that only the holder of a pool's lease does, beside dispatching training units."""

    async def run(self, pool: str, term: int) -> None:
        """Runs until it is cancelled: when the lease is lost or the replica shuts down."""
        ...


@dataclass(frozen=True, slots=True)
class CellTrainer:
    """The trainer of a cell: `serving` is alive and not drained; `drained` is one that is alive and gets no unit."""

    serving: pb.RegisterTrainerRequest | None = None
    drained: pb.RegisterTrainerRequest | None = None

    @property
    def any(self) -> pb.RegisterTrainerRequest | None:
        return self.serving or self.drained


class TrainerDirectory(Protocol):
    """Which trainers serve a pool now."""

    async def cells(self, pool: str) -> Mapping[str, CellTrainer]:
        """Cells with a trainer that is alive, or was a while ago."""
        ...

    async def replaced(self, pool: str, cell: str, incarnation: str) -> bool:
        """Whether others of the cell are alive and this one is not: nothing is to be expected of it."""
        ...

    async def facts(self, pool: str) -> types.PoolFacts:
        """Raises UnknownId when no such pool ever registered."""
        ...

    async def pools(self) -> list[types.PoolFacts]: ...


class SnapshotSink(Protocol):
    """Told when a sampler snapshot was published, before its save settles."""

    async def published(
        self, pool: str, tenant_id: str, path: str, version_directory: str, sampling_session_seq_id: int | None
    ) -> str:
        """Binds the sampling session (unnamed saves: its id is answered, else "") and starts the push.

        A failed push never fails the save.
        """
        ...


class ArtifactReader(Protocol):
    """Checkpoints and snapshots in the shared store, with ownership checked."""

    async def weights_info(self, path: str, tenant_id: str, access_digest: str) -> pb.WeightsInfo:
        """Raises InvalidInput, MissingResource, Forbidden."""
        ...

    async def version_directory(self, path: str, tenant_id: str, access_digest: str) -> str:
        """The immutable directory `path` names now, relative to the store root. Raises as above."""
        ...

    async def stored(self, path: TinkerPath) -> Artifact:
        """The version `path` names now, whoever asks. Raises InvalidInput, MissingResource."""
        ...


class CatalogWriter(Protocol):
    """Told what there is now, before the future of its create or save settles; may be told again."""

    async def model_created(self, pool: str, model_id: str) -> None: ...

    async def published(self, pool: str, path: TinkerPath, size_bytes: int) -> None:
        """Raises InvalidInput, MissingResource when it is not in the store."""
        ...
