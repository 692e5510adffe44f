"""Datums as a client would send them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tinkermesh.wire.v1 import wire_pb2 as wire

Tokens = npt.NDArray[np.int64]


def draw(datums: int, tokens: int, vocabulary: int, seed: int = 0) -> Tokens:
    """int64 [datums, tokens + 1], Zipf-distributed as token ids of text are."""
    drawn: Tokens = np.random.default_rng(seed).zipf(1.2, (datums, tokens + 1)) % vocabulary
    return drawn


def datum(row: Tokens) -> wire.Datum:
    """A cross_entropy datum: each token of `row` predicts the next one, weights all one."""
    made = wire.Datum()
    made.model_input.add().encoded_text.tokens = row[:-1].astype("<i4").tobytes()
    _tensor(made, "target_tokens", wire.DTYPE_INT64, row[1:].astype("<i8"))
    _tensor(made, "weights", wire.DTYPE_FLOAT32, np.ones(len(row) - 1, "<f4"))
    return made


def _tensor(made: wire.Datum, name: str, dtype: wire.DType.ValueType, values: npt.NDArray[Any]) -> None:
    tensor = made.loss_fn_inputs[name]
    tensor.dense, tensor.dtype = values.tobytes(), dtype
    tensor.shape.append(len(values))
