"""Strict JSON: true is not 1, 2.0 is not 2 and "4" is not 4; the text names the place."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec

from services.common.errors import InvalidInput

T = TypeVar("T")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
METADATA_BYTES = 64 * 1024
METADATA_SLACK = 4  # blanks and escapes that the canonical text does without
# Ids, counters and seeds must fit what carries them further.
Counter = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
# A training command's seq_id, an int32 in the protobuf form: what lies beyond would wait for its gap in vain.
Ordinal = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]


class Body(msgspec.Struct, kw_only=True):
    """A request body: fields this mesh does not know are ignored (newer SDKs send them)."""


class Parameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters inside a body: an unknown field would silently change the meaning."""


@lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises InvalidInput naming the field, or that it is not JSON at all."""
    try:
        decoded: T = _decoder(cast("Hashable", kind)).decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"request body: {error}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInput("request body is nested too deeply") from error
    return decoded


def check_parts(body: bytes, limit: int) -> None:
    """A part of two or three bytes becomes an object of fifty or more: they are counted before any is built.

    Raises InvalidInput for more than `limit` objects, lists and texts.
    """
    if len(body) > 2 * limit and body.count(b"{") + body.count(b"[") + body.count(b'"') // 2 > limit:
        raise InvalidInput(f"request body has more than {limit} objects, lists and texts; send smaller requests")


def canonical_json(value: msgspec.Raw) -> str:
    """An object with sorted keys, so equal metadata is equal text; "" for none or an empty one.

    Raises InvalidInput when it is no object or too large to be kept beside a model or session.
    """
    size = memoryview(value).nbytes
    if size > METADATA_SLACK * METADATA_BYTES:  # not even built
        raise _too_much_metadata(size)
    text = bytes(value)
    try:
        decoded = decode(text, dict[str, Any]) if text != b"null" else {}
    except InvalidInput as error:
        raise InvalidInput(f"user_metadata: {error.message.removeprefix('request body: ')}") from error
    canonical = msgspec.json.encode(decoded, order="sorted") if decoded else b""
    if len(canonical) > METADATA_BYTES:
        raise _too_much_metadata(len(canonical))
    return canonical.decode()


def _too_much_metadata(size: int) -> InvalidInput:
    return InvalidInput(f"user_metadata has {size} bytes as JSON, the limit is {METADATA_BYTES}")
