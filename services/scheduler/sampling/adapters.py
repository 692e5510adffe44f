"""The name of one immutable version at the samplers."""

from __future__ import annotations

from pathlib import PurePosixPath

from tinkermesh.v1 import types_pb2 as types

from services.common.store import VERSION_PREFIX


def adapter_ref(model_id: str, version_directory: str) -> types.AdapterRef:
    """``<model id>@<version>``: the version's own directory name is unique, so no two versions share it."""
    version = PurePosixPath(version_directory).name.removeprefix(VERSION_PREFIX)
    return types.AdapterRef(name=f"{model_id}@{version}", path=version_directory)
