"""Changes that keep a form intact: of a JSON document's values, of a protobuf message's fields, inside zstd."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import zstandard
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tinkermesh.wire.v1 import wire_pb2 as wire

from tests.fuzz.mutate import INTERESTING, LARGEST, mutated

SIGNED = {FieldDescriptor.CPPTYPE_INT32: 32, FieldDescriptor.CPPTYPE_INT64: 64}
UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}
VALUES: tuple[Any, ...] = (
    *INTERESTING,
    None,
    True,
    0.5,
    -0.5,
    1e308,
    "",
    "x",
    "float32",
    [],
    {},
    [0, 2],
    [[1]],
    {"x": 1},
)


def json_or_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mostly a document with one to four other values; sometimes other bytes."""
    try:
        document = msgspec.json.decode(data) if rng.random() < 0.75 else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        document = None
    if not isinstance(document, (dict, list)) or not document:
        return mutated(rng, data, others)
    for _ in range(rng.randrange(1, 5)):
        _change_json(rng, document)
    try:
        return msgspec.json.encode(document)[:LARGEST]
    except (OverflowError, msgspec.MsgspecError, RecursionError):
        return mutated(rng, data, others)


def _change_json(rng: random.Random, document: Any) -> None:
    places = list(_places(document, 0))
    if not places:
        return
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, _copied(holder[key]))
        case 2:
            other, other_key = rng.choice(places)
            holder[key] = _copied(other[other_key])
        case 3 if isinstance(holder, dict):
            holder[rng.choice(("x", "dtype", "shape", "data", "seq_id", "type", "tokens"))] = _copied(
                rng.choice(VALUES)
            )
        case _:
            holder[key] = _copied(rng.choice(VALUES))


def _copied(value: Any) -> Any:
    """A copy, so that documents stay trees; what is large becomes nothing: they must not grow without end."""
    encoded = msgspec.json.encode(value)
    return msgspec.json.decode(encoded) if len(encoded) < 512 else None


def _places(value: Any, depth: int) -> Any:
    """Every (container, key), not too deep."""
    if depth > 12:
        return
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in items[:64]:
        yield value, key
        yield from _places(inner, depth + 1)


def protobuf_or_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mostly a ForwardBackwardRequest with some other fields; sometimes other bytes."""
    message = wire.ForwardBackwardRequest()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return mutated(rng, data, others)
    if rng.random() < 0.25:
        return mutated(rng, data, others)
    for _ in range(rng.randrange(1, 5)):
        _change_message(rng, message)
    return message.SerializeToString()[:LARGEST]


def zstd_or_bytes(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Mostly another protobuf message in a good frame; sometimes a broken frame."""
    try:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(data)[:LARGEST]
    except zstandard.ZstdError:
        content = b""
    if not content or rng.random() < 0.3:
        return mutated(rng, data, others)
    return zstandard.ZstdCompressor().compress(protobuf_or_bytes(rng, content, ()))[:LARGEST]


def _change_message(rng: random.Random, message: Message) -> None:
    field: Any = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(rng, field, value)
    elif field.is_repeated:
        _change_repeated(rng, field, value)
    elif field.message_type is not None:
        _change_message(rng, value) if rng.random() < 0.8 else message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, field, value))


def _change_map(rng: random.Random, field: Any, value: Any) -> None:
    keys = sorted(value)
    if keys and rng.random() < 0.2:
        del value[rng.choice(keys)]
        return
    key = rng.choice([*keys, "x", "weights"])
    kind = field.message_type.fields_by_name["value"]
    if kind.message_type is not None:
        _change_message(rng, value[key])
    else:
        value[key] = _scalar(rng, kind, value.get(key))


def _change_repeated(rng: random.Random, field: Any, value: Any) -> None:
    action = rng.randrange(4)
    if action == 0 and value:
        del value[rng.randrange(len(value))]
    elif field.message_type is None:
        value.append(_scalar(rng, field, value[-1] if value else 0))
    elif action == 1 or not value:
        value.add()
    elif action == 2 and len(value) < 16:
        value.add().CopyFrom(rng.choice(list(value)))
    else:
        _change_message(rng, rng.choice(list(value)))


def _scalar(rng: random.Random, field: Any, held: Any) -> Any:
    kind = field.cpp_type
    if kind in UNSIGNED:
        return rng.choice(INTERESTING) % (1 << UNSIGNED[kind])
    if kind in SIGNED:
        bits, value = SIGNED[kind], rng.choice(INTERESTING)
        return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.randrange(6)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not held
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), 0.5))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return mutated(rng, held or b"\1\0\0\0", ())
    return rng.choice((held or "", "", "x", "ppo", "cispo", "gspo", "cross_entropy", "é" * 40))
