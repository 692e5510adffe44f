"""Versions in the shared store as the doubles write and read them: meta.json and state.json."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common.artifact_meta import decode_meta, encode_meta
from services.common.errors import InvalidInput, MissingResource
from services.common.store import META_FILE, TEMPORARY_PREFIX, VERSION_PREFIX, contained, relative

STATE_FILE = "state.json"


def publish(root: Path, directory: str, meta: ArtifactMeta, state: dict[str, object]) -> tuple[str, int]:
    """Writes a new version and swings the public link; answers (directory relative to root, bytes)."""
    public = root / directory
    public.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex
    temporary = public.parent / f"{TEMPORARY_PREFIX}{public.name}_{unique}"
    temporary.mkdir()
    (temporary / META_FILE).write_text(json.dumps(encode_meta(meta)))
    (temporary / STATE_FILE).write_text(json.dumps(state))
    version = public.parent / f"{VERSION_PREFIX}{public.name}_{unique}"
    temporary.rename(version)
    link = public.parent / f"{TEMPORARY_PREFIX}{public.name}_{unique}.link"
    link.symlink_to(version.name)
    os.replace(link, public)  # noqa: PTH105 - must not follow the link
    return relative(root, version.resolve()), sum(file.stat().st_size for file in version.iterdir())


def taken(root: Path, directory: str, meta: ArtifactMeta) -> bool:
    """Whether `directory` holds another artifact; an equal meta is an earlier run of the same save."""
    if not os.path.lexists(root / directory):
        return False
    stored = json.loads((root / directory / META_FILE).read_bytes())
    return decode_meta(stored, directory) != meta


def read_state(root: Path, directory: str) -> dict[str, Any]:
    """Raises MissingResource or InvalidInput."""
    path = contained(root, directory) / STATE_FILE
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingResource(f"{directory}: no such version") from error
    except ValueError as error:
        raise InvalidInput(f"{directory}: {STATE_FILE} cannot be read: {error}") from error
    return dict(state)
