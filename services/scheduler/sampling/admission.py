"""Accepts samples: idempotent by (sampling session, seq id), ids derived from the same key."""

from __future__ import annotations

from tinkermesh.v1 import scheduler_pb2 as pb

from services.common.errors import InvalidInput
from services.common.ids import key_hash, parse_sampling_session_id
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.outcome import user_failure
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.store.sampling import SampleToAdmit, SamplingStore
from services.scheduler.store.sequences import sequence_id

MAX_SEQUENCES = 1_024
"""Of one sample, whatever a gateway lets pass."""


class SampleAdmission:
    """Implements ports.Admission for sample keys."""

    def __init__(self, store: SamplingStore, presence: SamplerPresence, limits: SamplingLimits) -> None:
        self._store = store
        self._presence = presence
        self._limits = limits

    async def submit(self, request: pb.SubmitRequest, payload: bytes, traceparent: str) -> pb.SubmitReply:
        """Raises UnknownId, Forbidden, KeyConflict, Busy, InvalidInput, Unavailable."""
        key = request.sample
        pool = parse_sampling_session_id(key.sampling_session_id).pool
        failed = request.command.rejected or await self._presence.absence(pool)
        sample = _to_admit(request, payload, traceparent, failed)
        request_id, sequence_ids = await self._store.admit(
            pool, sample, self._limits.open_per_tenant, self._limits.retention_ms
        )
        return pb.SubmitReply(request_id=request_id, sample_sequence_ids=sequence_ids)


def _to_admit(request: pb.SubmitRequest, payload: bytes, traceparent: str, failed: str) -> SampleToAdmit:
    """`failed`: why it fails at once, "" when it does not."""
    command, key = request.command, request.sample
    if payload:
        raise InvalidInput("payload: a sample carries none")
    if not command.rejected and command.WhichOneof("body") != "sample":
        raise InvalidInput("command: a sample key needs a sample body")
    if not command.rejected and not command.sample.prompt_tokens:
        raise InvalidInput("prompt: a sample needs at least one prompt token")
    if command.sample.num_samples > MAX_SEQUENCES:
        raise InvalidInput(f"num_samples: {command.sample.num_samples} is above the limit of {MAX_SEQUENCES}")
    return SampleToAdmit(
        sampling_session_id=key.sampling_session_id,
        key=key_hash("sample", key.sampling_session_id, key.seq_id),
        tenant_id=request.tenant_id,
        fingerprint=request.fingerprint.hex(),
        seq_id=key.seq_id,
        sequence_ids=" ".join(sequence_ids(key, command.sample.num_samples)),
        command=command.SerializeToString(),
        traceparent=traceparent,
        failed_result=user_failure(failed).SerializeToString() if failed else b"",
    )


def sequence_ids(key: pb.SampleKey, num_samples: int) -> list[str]:
    """One per requested sequence, unique in the session, the same for every retry."""
    return [sequence_id(key.sampling_session_id, key.seq_id, index) for index in range(max(1, num_samples))]
