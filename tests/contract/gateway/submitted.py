"""What the doubled scheduler serves, and one command as it got it."""

from __future__ import annotations

from dataclasses import dataclass

from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from tests.doubles.fake_trainer import LOSSES

VOCAB = 512
CONTEXT = 256
BASE_MODEL = "tinkermesh/double"


def facts() -> types.PoolFacts:
    return types.PoolFacts(
        pool="double",
        base_model=BASE_MODEL,
        aliases=["/models/double/tiny", "double-alias"],
        vocab_size=VOCAB,
        max_context=CONTEXT,
        tokenizer_path="/models/double/tiny",
        slots=8,
        max_rank=32,
        alpha=32.0,
        train_attn=True,
        train_mlp=True,
        train_unembed=True,
        losses=list(LOSSES),
        arch="double",
    )


@dataclass
class Submitted:
    """One accepted command."""

    request: pb.SubmitRequest
    payload: bytes
    reply: pb.SubmitReply
    result: types.Result | None = None
    traceparent: str = ""

    @property
    def command(self) -> types.Command:
        return self.request.command
