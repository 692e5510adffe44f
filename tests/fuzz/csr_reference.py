"""Sparse tensors by the letter of the rules, slowly: what the gateway's decoder is held against."""

from __future__ import annotations

from collections.abc import Sequence


def dense(
    values: Sequence[float], crow: Sequence[int], col: Sequence[int], shape: Sequence[int], length: int, width: int
) -> list[float] | None:
    """Row-major values, or None when the tensor must be refused.

    A 1-D shape (N,) is one row of N; (N, K) has N rows; N is the datum's length and K at most `width`.
    crow has rows + 1 entries from 0 to nnz and does not decrease; columns increase strictly within a row and lie in it.
    """
    if len(shape) not in (1, 2) or any(size < 0 for size in shape):
        return None
    rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    if shape[0] != length or (len(shape) == 2 and columns > width):
        return None
    if len(crow) != rows + 1 or crow[0] != 0 or crow[-1] != len(values) or len(col) != len(values):
        return None
    if any(later < earlier for earlier, later in zip(crow, crow[1:], strict=False)):
        return None
    out = [0.0] * (rows * columns)
    for row in range(rows):
        last = -1
        for place in range(crow[row], crow[row + 1]):
            if not last < col[place] < columns:
                return None
            last = col[place]
            out[row * columns + last] = values[place]
    return out
