"""Accepts samples: idempotent by (sampling session, seq id), ids derived from the same key."""

from __future__ import annotations

from collections.abc import Callable

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.common.ids import key_hash, parse_sampling_session_id
from services.scheduler.core.prefixes import starts_of, written
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.sampling.outcome import user_failure
from services.scheduler.sampling.presence import SamplerPresence
from services.scheduler.store.sampling import SampleToAdmit, SamplingStore
from services.scheduler.store.sequences import sequence_id
from services.scheduler.tenancy.limits import encode_limits, unlimited
from services.scheduler.tenancy.records import Quotas

MAX_SEQUENCES = 1_024
"""Of one sample, whatever a gateway lets pass."""


class SampleAdmission:
    """Implements ports.Admission for sample keys. `quotas` answers those in force for a tenant."""

    def __init__(
        self,
        store: SamplingStore,
        presence: SamplerPresence,
        limits: SamplingLimits,
        quotas: Callable[[str], Quotas] = unlimited,
    ) -> None:
        self._store = store
        self._presence = presence
        self._limits = limits
        self._quotas = quotas

    async def submit(self, request: pb.SubmitRequest, payload: bytes, traceparent: str) -> pb.SubmitReply:
        """Raises UnknownId, Forbidden, KeyConflict, Busy, InvalidInput, Unavailable."""
        key = request.sample
        pool = parse_sampling_session_id(key.sampling_session_id).pool
        failed = request.command.rejected or await self._presence.absence(pool)
        quotas = self._quotas(request.tenant_id)
        body = request.command.sample
        cost = 0 if failed else _tokens(body)
        limits = encode_limits(quotas, cost, answers=True, records=body.record_stability_info and not failed)
        sample = _to_admit(request, payload, traceparent, failed)._replace(limits=limits)
        request_id, sequence_ids = await self._store.admit(pool, sample, quotas.samples, self._limits.retention_ms)
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
        starts="" if failed else written(starts_of(request.tenant_id, command.sample.prompt_tokens)),
        failed_result=user_failure(failed).SerializeToString() if failed else b"",
    )


def _tokens(sample: types.SampleBody) -> int:
    """What a sample may take at most: its prompt once and every sequence in full."""
    return len(sample.prompt_tokens) // 4 + max(1, sample.num_samples) * sample.max_tokens


def sequence_ids(key: pb.SampleKey, num_samples: int) -> list[str]:
    """One per requested sequence, unique in the session, the same for every retry."""
    return [sequence_id(key.sampling_session_id, key.seq_id, index) for index in range(max(1, num_samples))]
