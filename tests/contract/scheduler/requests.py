"""Commands of the training path as a gateway submits them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.datum_blocks import Datum, encode
from tests.doubles.fake_trainer import BASE_MODEL

TENANT = "tenant-a"
LAYOUT = types.AdapterLayout(rank=8, alpha=32.0, train_attn=True, train_mlp=True, train_unembed=True)


def new_session() -> str:
    return str(uuid.uuid4())


def fingerprint(request: pb.SubmitRequest, payload: bytes) -> bytes:
    return blake2b(request.command.SerializeToString(deterministic=True) + payload, digest_size=16).digest()


def create_request(
    session: str, seq: int = 0, *, tenant: str = TENANT, rank: int = 8, seed: int = 1
) -> pb.SubmitRequest:
    layout = types.AdapterLayout()
    layout.CopyFrom(LAYOUT)
    layout.rank = rank
    body = types.CreateModelBody(base_model=BASE_MODEL, layout=layout, seed=seed)
    key = pb.CreateKey(session_id=session, model_seq_id=seq)
    return pb.SubmitRequest(tenant_id=tenant, create=key, command=types.Command(create_model=body))


def batch_request(
    model: str,
    seq: int,
    lengths: Sequence[int] = (3,),
    *,
    tenant: str = TENANT,
    backward: bool = True,
    loss: str = "cross_entropy",
    salt: int = 0,
    rejected: str = "",
    **numbers: float,
) -> tuple[pb.SubmitRequest, bytes]:
    name = "weights" if loss == "cross_entropy" else "advantages"
    datums = [_datum(length, name, seq * 1000 + index + salt) for index, length in enumerate(lengths)]
    table = types.DatumTable(lengths=lengths, widths=[1] * len(lengths), fields=[name])
    body = types.BatchBody(backward=backward, loss=types.LossConfig(loss_fn=loss, numbers=numbers), table=table)
    key = pb.ModelKey(model_id=model, seq_id=seq)
    command = types.Command(batch=body, rejected=rejected)
    return pb.SubmitRequest(tenant_id=tenant, model=key, command=command), encode(datums, [name])


def _datum(length: int, name: str, seed: int) -> Datum:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 512, length, dtype=np.int32)
    targets = rng.integers(0, 512, (length, 1), dtype=np.int32)
    return Datum(tokens, targets, {name: rng.random((length, 1), dtype=np.float32)})


def step_request(model: str, seq: int, *, tenant: str = TENANT) -> pb.SubmitRequest:
    adam = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
    key = pb.ModelKey(model_id=model, seq_id=seq)
    command = types.Command(optim_step=types.OptimStepBody(adam=adam))
    return pb.SubmitRequest(tenant_id=tenant, model=key, command=command)
