"""Structs that refuse unknown fields, as twins of theirs that ignore them."""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec


def tolerant(kind: Any, base: type[msgspec.Struct]) -> Any:
    """`kind` with each struct below `base`, at any depth, replaced by a subclass that ignores unknown fields."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return Annotated[(tolerant(inner[0], base), *inner[1:])]
    if origin in (Union, UnionType):
        return reduce(or_, (tolerant(one, base) for one in inner))
    if origin in (list, dict):
        return origin[tuple(tolerant(one, base) for one in inner)]
    if isinstance(kind, type) and issubclass(kind, base):
        return _twin(kind, base)
    return kind


def _twin(kind: type[msgspec.Struct], base: type[msgspec.Struct]) -> type[msgspec.Struct]:
    changed = []
    for one in msgspec.structs.fields(kind):
        if (replaced := tolerant(one.type, base)) != one.type:
            changed.append(_field(one, replaced))
    return msgspec.defstruct(kind.__name__, changed, bases=(kind,), kw_only=True, forbid_unknown_fields=False)


def _field(info: msgspec.structs.FieldInfo, kind: Any) -> Any:
    if info.required:
        return info.name, kind
    if info.default is not msgspec.NODEFAULT:
        return info.name, kind, msgspec.field(default=info.default)
    return info.name, kind, msgspec.field(default_factory=info.default_factory)
