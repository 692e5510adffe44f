"""What was read along a prompt, as tensors of the wire: named tokens keep the request's own layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

Json = dict[str, Any]


def cells_protobuf(table: types.CellTable) -> wire.Tensor:
    layout = table.layout
    tensor = wire.Tensor(dtype=wire.DTYPE_FLOAT32, shape=[layout.rows, layout.width])
    if layout.sparse:
        tensor.sparse_csr.values = table.logprobs
        tensor.sparse_csr.crow_indices = _wide(layout.crow_indices)
        tensor.sparse_csr.col_indices = _wide(layout.col_indices)
    else:
        tensor.dense = table.logprobs
    return tensor


def alternatives_protobuf(table: types.TopkTable) -> wire.PromptAltTokens:
    shape = [table.length, table.k]
    return wire.PromptAltTokens(
        tokens=wire.Tensor(dense=_wide(table.token_ids), dtype=wire.DTYPE_INT64, shape=shape),
        logprobs=wire.Tensor(dense=table.logprobs, dtype=wire.DTYPE_FLOAT32, shape=shape),
    )


def cells_json(table: types.CellTable) -> Json:
    layout = table.layout
    tensor = _tensor_json("float32", table.logprobs, layout.rows, layout.width)
    if layout.sparse:
        tensor["sparse_crow_indices"] = _numbers(layout.crow_indices, "<i4")
        tensor["sparse_col_indices"] = _numbers(layout.col_indices, "<i4")
    return tensor


def alternatives_json(table: types.TopkTable) -> Json:
    return {
        "tokens": _tensor_json("int64", table.token_ids, table.length, table.k),
        "logprobs": _tensor_json("float32", table.logprobs, table.length, table.k),
    }


def _tensor_json(dtype: str, data: bytes, rows: int, width: int) -> Json:
    """`data`: int32 for int64, float32 for float32."""
    return {"data": _numbers(data, "<f4" if dtype == "float32" else "<i4"), "dtype": dtype, "shape": [rows, width]}


def _numbers(data: bytes, kind: str) -> list[float]:
    numbers: list[float] = np.frombuffer(data, kind).tolist()
    return numbers


def _wide(data: bytes) -> bytes:
    """int32 as int64 little-endian."""
    return np.frombuffer(data, "<i4").astype("<i8").tobytes()
