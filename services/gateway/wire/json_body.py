"""Strict JSON: true is not 1, 2.0 is not 2 and "4" is not 4; the text names the place."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec

from services.common.errors import InvalidInput
from services.gateway.wire.tolerance import tolerant

T = TypeVar("T")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
METADATA_BYTES = 64 * 1024
METADATA_SLACK = 4  # blanks and escapes that the canonical text does without
# Ids, counters and seeds must fit what carries them further.
Counter = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
# A training command's seq_id, an int32 in the protobuf form: what lies beyond would wait for its gap in vain.
Ordinal = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]


class Glance(msgspec.Struct, kw_only=True):
    """A look at some fields of a body, whatever else it holds: its whole is read apart."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A whole request body, or an object in one.

    A field this mesh does not know is refused, as the SDK's own request models refuse it; from an SDK
    newer than every tested one it is ignored (`unknown_fields_ignored`).
    """


class Parameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters inside a body: whoever sends it, an unknown field would silently change the meaning."""


_ignoring: ContextVar[bool] = ContextVar("ignoring", default=False)


@contextmanager
def unknown_fields_ignored(ignored: bool) -> Iterator[None]:
    """How `decode` takes what the current request's client sends."""
    token = _ignoring.set(ignored)
    try:
        yield
    finally:
        _ignoring.reset(token)


@lru_cache(maxsize=256)
def _decoder(kind: Any, ignoring: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(tolerant(kind, Body) if ignoring else kind)


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises InvalidInput naming the field, or that it is not JSON at all."""
    try:
        decoded: T = _decoder(cast("Hashable", kind), _ignoring.get()).decode(body)
    except msgspec.ValidationError as error:
        remedy = "; leave it out" if "unknown field" in str(error) else ""
        raise InvalidInput(f"request body: {error}{remedy}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidInput(f"request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInput("request body is nested too deeply") from error
    return decoded


def unknown_fields(body: bytes, kind: type[msgspec.Struct]) -> list[str]:
    """Names at the top of an object that `kind` does not have. Raises InvalidInput."""
    return sorted(decode(body, dict[str, msgspec.Raw]).keys() - set(kind.__struct_encode_fields__))


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
