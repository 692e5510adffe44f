"""meta.json of a published version: v1.ArtifactMeta as JSON with the proto's own field names.

int64 fields are JSON strings (the protobuf mapping); unknown keys are kept out of the way, so
a newer writer may add some.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.errors import InvalidInput


def encode_meta(meta: ArtifactMeta) -> dict[str, Any]:
    """What is stored; writers may add keys of their own beside these."""
    return json_format.MessageToDict(meta, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def is_of_save(stored: dict[str, Any], meta: ArtifactMeta) -> bool:
    """Whether what is `stored` was published by the save that `meta` describes: by an earlier run of it.

    A meta without a time is one that nobody can tell from others. What was written before there was `seq` has none.
    """
    mine = encode_meta(meta)
    return bool(meta.created_unix_ms) and all(
        stored.get(name, value if name == "seq" else None) == value for name, value in mine.items()
    )


def decode_meta(stored: dict[str, Any], where: str) -> ArtifactMeta:
    """Raises InvalidInput naming `where` and the field that does not fit."""
    try:
        return json_format.ParseDict(stored, ArtifactMeta(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise InvalidInput(f"{where}: metadata does not fit: {error}") from error
