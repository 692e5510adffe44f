"""What an installed Tinker SDK promises, as plain facts that can be compared between releases.

    python -m tests.contract.sdk.surface > tests/contract/sdk/surface.json    # accept a new release

Facts are "<group> <name>" -> text: the fields of every message with their types and defaults, the
signature of every public client method, and every field of the protobuf messages.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import pydantic
import tinker
import tinker.types
from tinker.lib import public_interfaces
from tinker.proto import tinker_public_pb2

Facts = dict[str, str]


def surface() -> Facts:
    return {"release tinker": tinker.__version__, **dict(sorted([*_messages(), *_methods(), *_protobuf()]))}


def public_methods() -> Iterator[tuple[str, Any]]:
    """(Class.method, function) of every public client class, properties included."""
    for name in public_interfaces.__all__:
        owner = getattr(public_interfaces, name)
        if inspect.isclass(owner) and name.endswith("Client"):
            yield from ((f"{name}.{method}", value) for method, value in inspect.getmembers(owner) if method[0] != "_")


def difference(known: Facts, found: Facts) -> list[str]:
    """One line per fact that appeared, vanished or changed."""
    lines = [f"gone: {name} (was {known[name]})" for name in known.keys() - found.keys()]
    lines += [f"new: {name} = {found[name]}" for name in found.keys() - known.keys()]
    both = known.keys() & found.keys()
    lines += [f"changed: {name}: {known[name]} -> {found[name]}" for name in both if known[name] != found[name]]
    return sorted(lines)


def _messages() -> Iterator[tuple[str, str]]:
    for name, message in vars(tinker.types).items():
        if inspect.isclass(message) and issubclass(message, pydantic.BaseModel):
            for field, info in message.model_fields.items():
                default = "required" if info.is_required() else repr(info.get_default(call_default_factory=True))
                yield f"message {name}.{field}", f"{_plain(info.annotation)} = {default}"


def _methods() -> Iterator[tuple[str, str]]:
    for name, value in public_methods():
        yield f"method {name}", str(inspect.signature(value)) if callable(value) else "property"


def _protobuf() -> Iterator[tuple[str, str]]:
    for name, message in tinker_public_pb2.DESCRIPTOR.message_types_by_name.items():
        for field in message.fields:
            kind = field.message_type.name if field.message_type else f"type {field.type}"
            yield (
                f"protobuf {name}.{field.name}",
                f"{field.number} {kind} {'repeated' if field.is_repeated else 'single'}",
            )


def _plain(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) if inspect.isclass(annotation) else str(annotation)  # type: ignore[return-value]


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1)
    sys.stdout.write("\n")
