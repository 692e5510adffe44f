"""How many parts a protobuf body holds, found before it is parsed.

A part of two bytes becomes an object of fifty or more, so a small compressed body of empty datums
or chunks would take gigabytes once parsed. The walk reads tags and lengths only, never contents.
"""

from __future__ import annotations

from services.common.errors import InvalidInput

DATA_FIELD = 3
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES = 10
# A body below this cannot hold parts enough to matter.
FREE_BYTES = 512 * 1024


def bounded(body: bytes, max_datums: int, max_parts: int) -> tuple[int, bool]:
    """(end, whole): up to where `body` may be parsed, and whether its parts stay within `max_parts`.

    Parts are its fields and those of its datums. The prefix may hold one datum more than
    `max_datums`, so that the check of the decoded request names that limit.
    Raises InvalidInput for bytes that are not plain protobuf fields.
    """
    if len(body) <= FREE_BYTES:
        return len(body), True
    datums = parts = at = 0
    while at < len(body):
        field, content, end = _field(body, at, len(body))
        parts += 1
        if field == DATA_FIELD:
            datums += 1
            parts += _count(body, content, end, max_parts - parts)
        if parts > max_parts:
            return at, False
        if datums > max_datums:
            return end, True
        at = end
    return at, True


def _count(body: bytes, at: int, end: int, room: int) -> int:
    count = 0
    while at < end and count <= room:
        _, _, at = _field(body, at, end)
        count += 1
    return count


def _field(body: bytes, at: int, end: int) -> tuple[int, int, int]:
    """(number, first byte of the content, byte after it) of the field at `at`."""
    tag = body[at]
    if tag < 128:
        at += 1
    else:
        tag, at = _varint(body, at, end)
    if tag & 7 != _LENGTH:
        return tag >> 3, at, _after_number(body, at, end, tag & 7)
    size, at = _varint(body, at, end)
    if size > end - at:
        raise _not_protobuf()
    return tag >> 3, at, at + size


def _after_number(body: bytes, at: int, end: int, kind: int) -> int:
    if kind == _VARINT:
        return _varint(body, at, end)[1]
    if kind not in (_FIXED64, _FIXED32):  # groups: no message of ours has one
        raise _not_protobuf()
    at += 8 if kind == _FIXED64 else 4
    if at > end:
        raise _not_protobuf()
    return at


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, min(at + _VARINT_BYTES, end)):
        byte = body[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise _not_protobuf()


def _not_protobuf() -> InvalidInput:
    return InvalidInput("request body is not a valid ForwardBackwardRequest protobuf")
