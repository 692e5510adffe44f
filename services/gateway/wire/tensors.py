"""Tensors of the wire as flat little-endian arrays, dense or CSR, checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from services.common.errors import InvalidInput

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "int64": np.dtype("<i8"), "int32": np.dtype("<i4")}
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()}


class Tensor(NamedTuple):
    """data: little-endian values in row-major order; shape: (N,) or (N, K).

    The bytes stay bytes until a whole column of them is looked at.
    """

    data: bytes
    dtype: str  # a key of DTYPES
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def values(self) -> Array:
        """A flat view."""
        return np.frombuffer(self.data, DTYPES[self.dtype])


def dense_from_bytes(data: bytes, dtype: str, shape: Sequence[int]) -> Tensor:
    """Raises InvalidInput when bytes, dtype and shape disagree."""
    size, rest = divmod(len(data), ITEM_BYTES[dtype])
    if rest:
        raise InvalidInput(f"{len(data)} bytes are not a whole number of {dtype} values")
    if len(shape) == 1 and shape[0] == size:
        return Tensor(data, dtype, (size,))
    return Tensor(data, dtype, _checked_shape(shape, size))


def dense_from_list(data: Sequence[float | int], dtype: str, shape: Sequence[int] | None) -> Tensor:
    """Raises InvalidInput for a value that does not fit `dtype`."""
    values = array_from_list(data, dtype)
    return Tensor(values.tobytes(), dtype, _checked_shape(shape or (), values.size))


def _checked_shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    checked = tuple(shape) or (size,)
    _check_rank(checked)
    if math.prod(checked) != size:
        raise InvalidInput(f"shape {list(checked)} needs {math.prod(checked)} values, {size} were sent")
    return checked


def _check_rank(shape: Sequence[int]) -> None:
    if len(shape) not in (1, 2):
        raise InvalidInput(f"shape {list(shape)[:8]} has {len(shape)} dimensions; only (N,) and (N, K) are accepted")
    if any(size < 0 for size in shape):
        raise InvalidInput(f"shape {list(shape)} has a negative size")


def array_from_list(data: Sequence[float | int], dtype: str) -> Array:
    """JSON numbers as an array: integers stay exact, float32 overflow becomes inf (and is refused later)."""
    if dtype == "float32":
        try:
            wide = np.array(data, dtype=np.float64)
        except OverflowError as error:
            raise InvalidInput("a value is too large for float32") from error
        with np.errstate(over="ignore"):
            return wide.astype("<f4")
    found = np.array(data) if data else np.zeros(0, np.int64)
    if found.dtype.kind == "f":
        raise InvalidInput(f"dtype {dtype} takes whole numbers only (3, not 3.0)")
    bounds = np.iinfo(DTYPES[dtype])
    if found.dtype != np.int64 or (found.size and (found.min() < bounds.min or found.max() > bounds.max)):
        raise InvalidInput(f"a value does not fit {dtype}")
    return found.astype(DTYPES[dtype])


def check_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype {dtype[:40]!r} is not accepted; use float32, int64 or int32")
    return dtype


class Room:
    """How many values the sparse tensors of one request may still grow to."""

    def __init__(self, values: int) -> None:
        self._left = values

    def take(self, values: int) -> None:
        """Raises InvalidInput when there are not as many left."""
        if values > self._left:
            raise InvalidInput("the sparse tensors of this request are too large when dense; send fewer datums")
        self._left -= values


class SparseBound(NamedTuple):
    """A sparse tensor may be no larger than its datum: `length` positions, `width` targets each."""

    length: int
    width: int
    room: Room


def densify(values: Array, crow: Int64, col: Int64, dtype: str, shape: Sequence[int], bound: SparseBound) -> Tensor:
    """CSR as a dense tensor; entries that are not listed are 0.

    `crow` has rows + 1 entries (2 for a 1-D tensor), starts at 0, never decreases and ends at the
    number of values; columns lie inside their row and strictly increase within it.
    Raises InvalidInput, before allocating, also when the dense form exceeds `bound`.
    """
    _check_rank(shape)
    _check_bound(shape, bound)
    rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    _check_rows(crow, rows, values.size)
    _check_columns(crow, col, columns, values.size)
    bound.room.take(rows * columns)
    dense = np.zeros(rows * columns, DTYPES[dtype])
    row_of = np.repeat(np.arange(rows, dtype=np.int64), np.diff(crow))
    dense[row_of * columns + col] = values
    return Tensor(dense.tobytes(), dtype, tuple(shape))


def check_csr(crow: Int64, col: Int64, shape: tuple[int, int], values: int) -> None:
    """The rules of `densify` for a tensor that stays sparse. Raises InvalidInput."""
    _check_rows(crow, shape[0], values)
    _check_columns(crow, col, shape[1], values)


def _check_bound(shape: Sequence[int], bound: SparseBound) -> None:
    if shape[0] != bound.length:
        raise InvalidInput(f"sparse shape {list(shape)} does not start with the {bound.length} model_input tokens")
    if len(shape) == 2 and shape[1] > bound.width:
        raise InvalidInput(f"sparse shape {list(shape)}: at most {bound.width} targets per position are accepted")


def _check_rows(crow: Int64, rows: int, values: int) -> None:
    if crow.size != rows + 1:
        raise InvalidInput(f"crow_indices has {crow.size} entries, {rows} rows need {rows + 1}")
    if crow[0] != 0 or crow[-1] != values:
        raise InvalidInput(f"crow_indices must start at 0 and end at the number of values ({values})")
    if np.any(crow[1:] < crow[:-1]):  # not np.diff: it wraps around at the ends of int64
        raise InvalidInput("crow_indices must never decrease")


def _check_columns(crow: Int64, col: Int64, columns: int, values: int) -> None:
    if col.size != values:
        raise InvalidInput(f"col_indices has {col.size} entries for {values} values")
    if col.size == 0:
        return
    if col.min() < 0 or col.max() >= columns:
        raise InvalidInput(f"col_indices must lie in [0, {columns})")
    rising = col[1:] > col[:-1]
    starts = crow[1:-1]
    starts = starts[(starts > 0) & (starts < col.size)]
    rising[starts - 1] = True  # a new row may begin at any column
    if not rising.all():
        raise InvalidInput("col_indices must strictly increase within a row (no duplicates)")
