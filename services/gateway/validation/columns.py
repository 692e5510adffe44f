"""One column per input: its values over all datums of a request, checked in whole-array steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from services.common.datum_blocks import ITEM_BYTES
from services.common.errors import InvalidInput
from services.gateway.validation.losses import TARGETS
from services.gateway.wire.batch import RawDatum
from services.gateway.wire.tensors import DTYPES, Tensor

Array = npt.NDArray[Any]


class Columns:
    """lengths: positions of each datum; widths: targets per position of each datum."""

    def __init__(self, datums: Sequence[RawDatum]) -> None:
        self._datums = datums
        self.lengths = [datum.length for datum in datums]
        self.widths = [datum.inputs[TARGETS].width for datum in datums]
        sizes = [length * width for length, width in zip(self.lengths, self.widths, strict=True)]
        self._token_offsets = list(accumulate(self.lengths, initial=0))
        self._target_offsets = list(accumulate(sizes, initial=0))

    def tokens(self, vocab: int) -> Array:
        """int32 [sum of lengths]. Raises InvalidInput for an id outside [0, vocab)."""
        tokens = np.frombuffer(b"".join([datum.tokens for datum in self._datums]), "<i4")
        self._check_range("model_input token", tokens, vocab, self._token_offsets)
        return tokens

    def targets(self, vocab: int) -> Array:
        """int32 [sum of lengths times widths]. Raises InvalidInput for an id outside [0, vocab)."""
        targets = _joined([datum.inputs[TARGETS] for datum in self._datums])
        self._check_range("target token", targets, vocab, self._target_offsets)
        return targets.astype("<i4", copy=False)

    def floats(self, name: str) -> Array:
        """float32 [sum of lengths times widths]; ones where the input is absent (it is optional then).

        Raises InvalidInput for a value that is not finite as float32.
        """
        values = _joined([datum.inputs.get(name) or _ones_like(datum.inputs[TARGETS]) for datum in self._datums])
        if values.dtype != np.float32:
            values = values.astype("<f4")
        if not np.isfinite(values).all():
            position = int(np.flatnonzero(~np.isfinite(values))[0])
            where = _locate(position, self._target_offsets)
            raise InvalidInput(f"{where}: {name} is {values[position]} as float32; it must be finite")
        return values

    def blocks(self, parts: Sequence[Array]) -> bytes:
        """Datum blocks: per datum its tokens, its targets, then each float column."""
        if len(self.lengths) == 1:
            return b"".join([part.tobytes() for part in parts])
        views = [memoryview(part).cast("B") for part in parts]  # type: ignore[arg-type]
        token_cuts = [ITEM_BYTES * offset for offset in self._token_offsets]
        target_cuts = [ITEM_BYTES * offset for offset in self._target_offsets]
        cut_views = [(views[0], token_cuts), *((view, target_cuts) for view in views[1:])]
        return b"".join([view[cut[i] : cut[i + 1]] for i in range(len(self.lengths)) for view, cut in cut_views])

    def _check_range(self, what: str, ids: Array, vocab: int, offsets: Sequence[int]) -> None:
        # As unsigned numbers the negative ids are the largest ones: one pass finds both ends.
        if int(ids.view(f"<u{ids.itemsize}").max()) < vocab:
            return
        position = int(np.flatnonzero((ids < 0) | (ids >= vocab))[0])
        raise InvalidInput(f"{_locate(position, offsets)}: {what} {ids[position]} is outside [0, {vocab})")


def _joined(tensors: Sequence[Tensor]) -> Array:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1:
        return np.frombuffer(b"".join([tensor.data for tensor in tensors]), DTYPES[dtypes.pop()])
    return np.concatenate([tensor.values for tensor in tensors])


def _ones_like(targets: Tensor) -> Tensor:
    return Tensor(np.ones(targets.length * targets.width, "<f4").tobytes(), "float32", targets.shape)


def _locate(position: int, offsets: Sequence[int]) -> str:
    datum = bisect_right(offsets, position) - 1
    return f"datum {datum}, position {position - offsets[datum]}"
