"""target_prompt_logprobs: which tokens to score at which positions of the prompt, dense or CSR."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.gateway.wire.bodies import TensorData
from services.gateway.wire.tensors import Array, array_from_list, check_csr

_FIELD = "target_prompt_logprobs"
Int64 = npt.NDArray[np.int64]


class PromptCells(NamedTuple):
    """tokens int32 little-endian, one per cell of the layout, -1 = skip."""

    tokens: bytes
    layout: types.CellLayout


def prompt_cells(tensor: TensorData, prompt: int, vocab: int, limit: int) -> PromptCells:
    """`prompt`: its tokens; the tensor needs one row less. Raises InvalidInput naming the field."""
    try:
        return _prompt_cells(tensor, prompt, vocab, limit)
    except InvalidInput as error:
        raise InvalidInput(f"{_FIELD}: {error.message}") from error


def _prompt_cells(tensor: TensorData, prompt: int, vocab: int, limit: int) -> PromptCells:
    rows, width = _shape(tensor, prompt)
    if len(tensor.data) > limit:
        raise InvalidInput(f"{len(tensor.data)} ids, the limit is {limit} per request")
    tokens = array_from_list(tensor.data, "int64")
    layout = types.CellLayout(rows=rows, width=width)
    if tensor.sparse_crow_indices is not None or tensor.sparse_col_indices is not None:
        _sparse(layout, tensor, tokens)
    elif tokens.size != rows * width:
        raise InvalidInput(f"shape [{rows}, {width}] needs {rows * width} values, {tokens.size} were sent")
    _check_tokens(tokens, vocab)
    return PromptCells(tokens.astype("<i4").tobytes(), layout)


def _shape(tensor: TensorData, prompt: int) -> tuple[int, int]:
    if tensor.dtype != "int64":
        raise InvalidInput(f"dtype must be int64, not {tensor.dtype[:40]!r}")
    shape = tensor.shape or []
    if len(shape) != 2 or not 1 <= shape[1] <= (1 << 31) - 1:
        raise InvalidInput(f"shape must be [len(prompt) - 1, K] with K >= 1, not {shape[:8]}")
    if shape[0] != prompt - 1:
        raise InvalidInput(f"shape {shape} must have len(prompt) - 1 = {prompt - 1} rows")
    return shape[0], shape[1]


def _sparse(layout: types.CellLayout, tensor: TensorData, tokens: Array) -> None:
    crow, col = _indices(tensor.sparse_crow_indices), _indices(tensor.sparse_col_indices)
    check_csr(crow, col, (layout.rows, layout.width), tokens.size)
    layout.sparse = True
    layout.crow_indices, layout.col_indices = crow.astype("<i4").tobytes(), col.astype("<i4").tobytes()


def _indices(values: list[int] | None) -> Int64:
    if values is None:
        raise InvalidInput("a sparse tensor needs sparse_crow_indices and sparse_col_indices")
    return array_from_list(values, "int64").astype(np.int64)


def _check_tokens(tokens: Array, vocab: int) -> None:
    wrong = np.flatnonzero((tokens < -1) | (tokens >= vocab))
    if wrong.size:
        raise InvalidInput(f"value {int(wrong[0])}: id {tokens[wrong[0]]} is neither -1 (skip) nor in [0, {vocab})")
    if not (tokens >= 0).any():
        raise InvalidInput("names no id at all; leave it out")
