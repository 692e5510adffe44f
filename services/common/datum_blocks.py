"""The canonical datum: encoded once by the gateway, from there only copied and sliced.

A payload is the concatenation of one block per datum. With L positions, K targets per
position (`width`) and the float fields f1..fm (all little-endian, no padding):

    block = tokens  int32 [L]
            targets int32 [L, K]
            f1 … fm float32 [L, K] each

Lengths, widths and field names are in the DatumTable beside the payload, so the bytes of a
range of datums are one contiguous slice and packing is concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.common.errors import InvalidInput

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

ITEM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Datum:
    """tokens int32 [L]; targets int32 [L, K]; each field float32 [L, K]."""

    tokens: Int32
    targets: Int32
    fields: dict[str, Float32]

    @property
    def length(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def width(self) -> int:
        return int(self.targets.shape[1])


def block_bytes(length: int, width: int, fields: int) -> int:
    """Size in bytes of one block."""
    return ITEM_BYTES * length * (1 + width * (1 + fields))


def block_offsets(lengths: Sequence[int], widths: Sequence[int], fields: int) -> list[int]:
    """Byte offset of each block, and the total at the end: len(lengths) + 1 entries."""
    offsets = [0]
    for length, width in zip(lengths, widths, strict=True):
        offsets.append(offsets[-1] + block_bytes(length, width, fields))
    return offsets


def encode(datums: Sequence[Datum], fields: Sequence[str]) -> bytes:
    """The payload of `datums`; every datum must carry exactly `fields`."""
    parts: list[bytes] = []
    for datum in datums:
        parts.append(np.ascontiguousarray(datum.tokens, dtype="<i4").tobytes())
        parts.append(np.ascontiguousarray(datum.targets, dtype="<i4").tobytes())
        parts.extend(np.ascontiguousarray(datum.fields[name], dtype="<f4").tobytes() for name in fields)
    return b"".join(parts)


def decode(
    payload: bytes | memoryview, lengths: Sequence[int], widths: Sequence[int], fields: Sequence[str]
) -> list[Datum]:
    """Datums as views into `payload` (no copy).

    Raises InvalidInput when the payload's size is not what the table says.
    """
    offsets = block_offsets(lengths, widths, len(fields))
    if offsets[-1] != len(payload):
        raise InvalidInput(f"payload has {len(payload)} bytes, its table says {offsets[-1]}")
    return [
        _decode_block(payload, start, length, width, fields)
        for start, length, width in zip(offsets, lengths, widths, strict=False)
    ]


def _decode_block(payload: bytes | memoryview, start: int, length: int, width: int, fields: Sequence[str]) -> Datum:
    tokens = np.frombuffer(payload, "<i4", length, start)
    start += ITEM_BYTES * length
    targets = np.frombuffer(payload, "<i4", length * width, start).reshape(length, width)
    values: dict[str, Float32] = {}
    for name in fields:
        start += ITEM_BYTES * length * width
        values[name] = np.frombuffer(payload, "<f4", length * width, start).reshape(length, width)
    return Datum(tokens, targets, values)
