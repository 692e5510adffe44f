"""A client that records what it samples and trains on it, and one lesson as the cookbook assembles it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, encode
from tests.contract.scheduler.front.mesh import (
    ALICE,
    Replica,
    command,
    result,
    sample_request,
)
from tests.doubles.fake_sampler import FakeSampler
from tests.doubles.fake_trainer import FakeTrainer

PROMPT = np.array([1, 2, 3], "<i4")  # what sample_request sends


@dataclass
class Recorded:
    """One sampled sequence and what was answered for it."""

    sequence_id: str
    tokens: np.ndarray
    logprobs: np.ndarray

    def span(self, offset: int = 0, length: int | None = None, *, sampled: bool = True) -> types.ProvenanceSpan:
        size = len(self.tokens) - offset if length is None else length
        return types.ProvenanceSpan(sequence_id=self.sequence_id, offset=offset, length=size, sampled=sampled)


@dataclass
class Client:
    replica: Replica
    trainer: FakeTrainer
    sampler: FakeSampler
    model_id: str
    sampling_session: str
    seen: list[Datum]
    seq: int = 0

    async def sample(self, seq: int, *, n: int = 1, record: bool = True, **changes: Any) -> list[Recorded]:
        request = sample_request(self.sampling_session, seq, n=n, tokens=5)
        body = request.command.sample
        body.record_stability_info, body.seed = record, 11 + seq
        body.stop.disabled = True
        for name, value in changes.items():
            setattr(body, name, value)
        reply = await self.replica.scheduler.Submit(request)
        sequences = (await result(self.replica, reply.request_id)).sample.sequences
        return [
            Recorded(name, np.frombuffer(one.tokens, "<i4"), np.frombuffer(one.logprobs, "<f4"))
            for name, one in zip(reply.sample_sequence_ids, sequences, strict=True)
        ]

    def request(
        self, datums: Sequence[Datum], provenance: Sequence[types.DatumProvenance], seq: int, tenant: str = ALICE
    ) -> pb.SubmitRequest:
        table = types.DatumTable(lengths=[d.length for d in datums], widths=[1] * len(datums), fields=["advantages"])
        loss = types.LossConfig(loss_fn="stable_reinforce")
        body = types.BatchBody(backward=True, loss=loss, table=table, provenance=provenance)
        made = command(self.model_id, seq, types.Command(batch=body), tenant=tenant)
        made.payload = encode(datums, ["advantages"])
        made.payload_bytes = len(made.payload)
        return made

    async def train(
        self, datums: Sequence[Datum], provenance: Sequence[types.DatumProvenance]
    ) -> tuple[str, types.Result]:
        self.seq += 1
        reply = await self.replica.scheduler.Submit(self.request(datums, provenance, self.seq))
        return reply.request_id, await result(self.replica, reply.request_id)

    async def refused(self, datums: Sequence[Datum], provenance: Sequence[types.DatumProvenance]) -> str:
        """The text of a user failure, after which the next command still runs and the trainer saw nothing."""
        before = len(self.seen)
        _, outcome = await self.train(datums, provenance)
        assert outcome.failure.category == types.FAILURE_CATEGORY_USER
        assert len(self.seen) == before
        return outcome.failure.message


def lesson(one: Recorded) -> tuple[Datum, types.DatumProvenance]:
    """Prompt and sampled tokens, shifted by one, as the cookbook assembles them; targets of the prompt are 0."""
    whole = np.concatenate((PROMPT, one.tokens))
    targets = np.concatenate((np.zeros(len(PROMPT) - 1, "<i4"), one.tokens))
    advantages = np.where(np.arange(len(targets)) >= len(PROMPT) - 1, 1.5, 0.0).astype("<f4")
    prompt = one.span(0, len(PROMPT), sampled=False)
    spans = types.DatumProvenance(
        model_input=[prompt, one.span(0, len(one.tokens) - 1)],
        targets=[one.span(1, len(PROMPT) - 1, sampled=False), one.span()],
    )
    return Datum(whole[:-1], targets[:, None], {"advantages": advantages[:, None]}), spans
