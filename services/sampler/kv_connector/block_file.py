"""One cache block as bytes that prove themselves: what it is, for which geometry, and a checksum of all of it.

magic (8 bytes) | length of the header (4 bytes, little-endian) | header (JSON) | rows | BLAKE2b of all before
"""

from __future__ import annotations

import hashlib
import struct
from typing import Literal

import msgspec

MAGIC = b"TMKVBLK1"
_LENGTH = struct.Struct("<I")
_MOST_HEADER = 4096
_DIGEST_BYTES = 16

Cause = Literal["missing", "unreadable", "format", "checksum", "key", "geometry"]


class BlockGeometry(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of a block: `layers` matrices of [kv_heads, block_size, row_bytes]."""

    layers: int
    kv_heads: int
    block_size: int
    """Tokens."""
    row_bytes: int
    """Key and value of one token and head."""
    head_dim: int
    dtype: str

    @property
    def block_bytes(self) -> int:
        return self.layers * self.kv_heads * self.block_size * self.row_bytes


class Header(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    geometry: BlockGeometry


class BadBlock(Exception):
    """A block that is not what it should be; `cause` says which check it failed."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause

    @property
    def is_wrong(self) -> bool:
        """It is there, and waiting does not mend it."""
        return self.cause not in ("missing", "unreadable")


def encode(key: str, geometry: BlockGeometry, payload: bytes) -> bytes:
    header = msgspec.json.encode(Header(key=key, geometry=geometry))
    body = b"".join((MAGIC, _LENGTH.pack(len(header)), header, payload))
    return body + _digest(body)


def decode(data: bytes, key: str, geometry: BlockGeometry) -> memoryview:
    """The block's bytes. Raises BadBlock on any doubt."""
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start + _DIGEST_BYTES or data[: len(MAGIC)] != MAGIC:
        raise BadBlock("format", "it does not begin as a block does")
    if _digest(memoryview(data)[:-_DIGEST_BYTES]) != data[-_DIGEST_BYTES:]:
        raise BadBlock("checksum", "its checksum is another")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    header = _header(data[start : start + min(length, _MOST_HEADER)])
    if header.key != key:
        raise BadBlock("key", f"it holds block {header.key[:16]}")
    payload = memoryview(data)[start + length : -_DIGEST_BYTES]
    if header.geometry != geometry or len(payload) != geometry.block_bytes:
        raise BadBlock("geometry", f"its geometry is {header.geometry}")
    return payload


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _header(data: bytes) -> Header:
    try:
        return msgspec.json.decode(data, type=Header)
    except msgspec.MsgspecError as error:
        raise BadBlock("format", f"its header cannot be read: {error}") from None
