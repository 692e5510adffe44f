"""forward_backward as protobuf: tokens and tensors stay bytes, viewed by numpy, never Python numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from google.protobuf.message import DecodeError
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common import stable_reinforce
from services.common.errors import InvalidInput, TinkermeshError
from services.gateway.settings import Limits
from services.gateway.wire.batch import RawBatch, RawDatum, RawLoss, sparse_room
from services.gateway.wire.protobuf_shape import bounded
from services.gateway.wire.provenance import of_protobuf
from services.gateway.wire.tensors import (
    DTYPES,
    ITEM_BYTES,
    Room,
    SparseBound,
    Tensor,
    check_dtype,
    dense_from_bytes,
    densify,
)

_DTYPE_NAMES = {wire.DTYPE_FLOAT32: "float32", wire.DTYPE_INT64: "int64", wire.DTYPE_INT32: "int32"}


def parse(body: bytes, limits: Limits) -> tuple[wire.ForwardBackwardRequest, str]:
    """(request, problem): a body of too many parts is parsed up to its limit, and `problem` says so.

    Raises InvalidInput when `body` is not a ForwardBackwardRequest at all.
    """
    request = wire.ForwardBackwardRequest()
    end, whole = bounded(body, limits.max_datums, limits.max_parts)
    try:
        request.ParseFromString(body if end == len(body) else body[:end])
    except DecodeError as error:
        raise InvalidInput("request body is not a valid ForwardBackwardRequest protobuf") from error
    problem = f"data: more than {limits.max_parts} chunks, inputs and spans; send fewer datums or join chunks"
    return request, "" if whole else problem


def decode(request: wire.ForwardBackwardRequest, limits: Limits) -> RawBatch:
    """Raises InvalidInput naming the datum and the input."""
    if len(request.data) > limits.max_datums:
        raise InvalidInput(f"data: {len(request.data)} datums, the limit is {limits.max_datums} per request")
    loss = RawLoss(request.loss_fn, _loss_config(request))
    room = sparse_room(limits)
    datums = [_datum(index, datum, limits, room) for index, datum in enumerate(request.data)]
    if loss.name == stable_reinforce.NAME:
        datums = [_with_provenance(index, *pair) for index, pair in enumerate(zip(datums, request.data, strict=True))]
    return RawBatch(not request.forward_only, loss, datums)


def _loss_config(request: wire.ForwardBackwardRequest) -> dict[str, float | str]:
    # Numbers are written to both maps, texts to v2 only: v2 replaces the legacy map as a whole.
    if not request.loss_fn_config_v2:
        return dict(request.loss_fn_config)
    config: dict[str, float | str] = {}
    for key, value in request.loss_fn_config_v2.items():
        match value.WhichOneof("value"):
            case "number":
                config[key] = value.number
            case "text":
                config[key] = value.text
            case _:
                raise InvalidInput(f"loss_fn_config_v2[{key[:80]!r}] has neither a number nor a text")
    return config


def _datum(index: int, datum: wire.Datum, limits: Limits, room: Room) -> RawDatum:
    chunks = datum.model_input
    tokens = _chunk_tokens(index, chunks[0]) if len(chunks) == 1 else _joined_tokens(index, chunks)
    if len(tokens) > 4 * limits.max_tokens_per_datum:
        raise InvalidInput(
            f"datum {index}: {len(tokens) // 4} tokens, the limit is {limits.max_tokens_per_datum} per datum"
        )
    bound = SparseBound(len(tokens) // 4, limits.max_targets_per_position, room)
    return RawDatum(tokens, {name: _tensor(index, name, one, bound) for name, one in datum.loss_fn_inputs.items()})


def _with_provenance(index: int, raw: RawDatum, datum: wire.Datum) -> RawDatum:
    try:
        return raw._replace(provenance=of_protobuf(datum))
    except InvalidInput as error:
        raise InvalidInput(f"datum {index}: {error.message}") from error


def _joined_tokens(index: int, chunks: Iterable[wire.Chunk]) -> bytes:
    return b"".join([_chunk_tokens(index, chunk) for chunk in chunks])


def _chunk_tokens(index: int, chunk: wire.Chunk) -> bytes:
    if not chunk.HasField("encoded_text"):
        kind = chunk.WhichOneof("chunk")
        raise InvalidInput(
            f"datum {index}: {kind or 'empty'} chunk; this mesh serves text models, send encoded_text only"
        )
    tokens = chunk.encoded_text.tokens
    if len(tokens) % 4:
        raise InvalidInput(f"datum {index}: encoded_text has {len(tokens)} bytes, not a whole number of int32 tokens")
    return tokens


def _tensor(index: int, name: str, tensor: wire.Tensor, bound: SparseBound) -> Tensor:
    try:
        return _decode_tensor(tensor, bound)
    except TinkermeshError as error:
        raise InvalidInput(f"datum {index}: {name[:80]}: {error.message}") from error


def _decode_tensor(tensor: wire.Tensor, bound: SparseBound) -> Tensor:
    dtype = _DTYPE_NAMES.get(tensor.dtype) or check_dtype(f"number {int(tensor.dtype)}")
    if tensor.HasField("sparse_csr"):
        return _decode_csr(tensor, dtype, bound)
    return dense_from_bytes(tensor.dense, dtype, tensor.shape)


def _decode_csr(tensor: wire.Tensor, dtype: str, bound: SparseBound) -> Tensor:
    csr = tensor.sparse_csr
    sizes = (len(csr.values) % ITEM_BYTES[dtype], len(csr.crow_indices) % 8, len(csr.col_indices) % 8)
    if any(sizes):
        raise InvalidInput("a sparse part's bytes are not a whole number of its items")
    return densify(
        np.frombuffer(csr.values, DTYPES[dtype]),
        np.frombuffer(csr.crow_indices, "<i8"),
        np.frombuffer(csr.col_indices, "<i8"),
        dtype,
        tuple(tensor.shape),
        bound,
    )
