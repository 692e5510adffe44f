"""forward_backward as JSON, for clients other than the SDK."""

from __future__ import annotations

import numpy as np

from services.common import stable_reinforce
from services.common.errors import InvalidInput, TinkermeshError
from services.gateway.settings import Limits
from services.gateway.wire import bodies
from services.gateway.wire.batch import RawBatch, RawDatum, RawLoss, sparse_room
from services.gateway.wire.json_body import check_parts
from services.gateway.wire.json_body import decode as decode_json
from services.gateway.wire.provenance import of_json
from services.gateway.wire.tensors import (
    Room,
    SparseBound,
    Tensor,
    array_from_list,
    check_dtype,
    dense_from_list,
    densify,
)


def decode(body: bytes, limits: Limits) -> RawBatch:
    """Raises InvalidInput naming the datum and the input."""
    check_parts(body, limits.max_parts)
    request = decode_json(body, bodies.ForwardBackward)
    content = request.forward_backward_input or request.forward_input
    if content is None:
        raise InvalidInput("forward_backward_input is required")
    if len(content.data) > limits.max_datums:
        raise InvalidInput(f"data: {len(content.data)} datums, the limit is {limits.max_datums} per request")
    room = sparse_room(limits)
    datums = [_datum(index, datum, limits, room) for index, datum in enumerate(content.data)]
    if content.loss_fn == stable_reinforce.NAME:
        datums = [_with_provenance(index, *pair) for index, pair in enumerate(zip(datums, content.data, strict=True))]
    backward = request.forward_backward_input is not None and not request.forward_only
    return RawBatch(backward, RawLoss(content.loss_fn, dict(content.loss_fn_config or {})), datums)


def _datum(index: int, datum: bodies.Datum, limits: Limits, room: Room) -> RawDatum:
    try:
        tokens = tokens_of(datum.model_input)
    except TinkermeshError as error:
        raise InvalidInput(f"datum {index}: {error.message}") from error
    if len(tokens) > 4 * limits.max_tokens_per_datum:
        raise InvalidInput(
            f"datum {index}: {len(tokens) // 4} tokens, the limit is {limits.max_tokens_per_datum} per datum"
        )
    bound = SparseBound(len(tokens) // 4, limits.max_targets_per_position, room)
    inputs = {name: _tensor(index, name, tensor, bound) for name, tensor in datum.loss_fn_inputs.items()}
    return RawDatum(tokens, inputs)


def _with_provenance(index: int, raw: RawDatum, datum: bodies.Datum) -> RawDatum:
    try:
        return raw._replace(provenance=of_json(datum))
    except InvalidInput as error:
        raise InvalidInput(f"datum {index}: {error.message}") from error


def tokens_of(model_input: bodies.ModelInput) -> bytes:
    """int32 little-endian bytes of all text chunks, in order. Raises InvalidInput."""
    tokens: list[int] = []
    for chunk in model_input.chunks:
        if chunk.type != "encoded_text":
            raise InvalidInput(f"{chunk.type[:40]} chunk; this mesh serves text models, send encoded_text only")
        if chunk.tokens is None:
            raise InvalidInput("encoded_text chunk has no tokens")
        tokens.extend(chunk.tokens)
    try:
        return array_from_list(tokens, "int32").tobytes()
    except InvalidInput as error:
        position = next(n for n, token in enumerate(tokens) if not -(1 << 31) <= token < 1 << 31)
        raise InvalidInput(f"position {position}: token {tokens[position]} is outside the vocabulary") from error


def _tensor(index: int, name: str, tensor: bodies.TensorData, bound: SparseBound) -> Tensor:
    try:
        return _decode_tensor(tensor, bound)
    except TinkermeshError as error:
        raise InvalidInput(f"datum {index}: {name[:80]}: {error.message}") from error


def _decode_tensor(tensor: bodies.TensorData, bound: SparseBound) -> Tensor:
    dtype = check_dtype(tensor.dtype)
    if tensor.sparse_crow_indices is None and tensor.sparse_col_indices is None:
        return dense_from_list(tensor.data, dtype, tensor.shape)
    if tensor.sparse_crow_indices is None or tensor.sparse_col_indices is None or tensor.shape is None:
        raise InvalidInput("a sparse tensor needs sparse_crow_indices, sparse_col_indices and shape")
    return densify(
        array_from_list(tensor.data, dtype),
        array_from_list(tensor.sparse_crow_indices, "int64").astype(np.int64),
        array_from_list(tensor.sparse_col_indices, "int64").astype(np.int64),
        dtype,
        tensor.shape,
        bound,
    )
