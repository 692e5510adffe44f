"""Strict JSON: true is not 1, 2.0 is not 2 and "4" is not 4; the text names the place."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec

from services.common.errors import InvalidInput

T = TypeVar("T")

INT64_MAX = (1 << 63) - 1
METADATA_BYTES = 64 * 1024
# Ids, counters and seeds must fit what carries them further.
Counter = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
Ordinal = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]


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


def canonical_json(value: dict[str, Any] | None) -> str:
    """`value` with sorted keys, so equal metadata is equal text; "" for none.

    Raises InvalidInput when it is too large to be kept beside a model or session.
    """
    if not value:
        return ""
    text = msgspec.json.encode(value, order="sorted")
    if len(text) > METADATA_BYTES:
        raise InvalidInput(f"user_metadata has {len(text)} bytes as JSON, the limit is {METADATA_BYTES}")
    return text.decode()
