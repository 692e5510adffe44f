"""Versions in the shared store as the doubles write and read them: meta.json and state.json."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from tinkermesh.v1.trainer_pb2 import ArtifactMeta

from services.common import publish as publication
from services.common.artifact_meta import encode_meta, is_of_save
from services.common.errors import InvalidInput, MissingResource
from services.common.publish import Claim, public_path
from services.common.store import META_FILE, contained, relative

STATE_FILE = "state.json"


def publish(
    root: Path,
    directory: str,
    meta: ArtifactMeta,
    state: dict[str, object],
    *,
    overwrite: bool = False,
    term: int = 0,
    stage: publication.Stage | None = None,
) -> tuple[str, int]:
    """As trainers publish; answers (version directory relative to root, bytes).

    Raises InvalidInput or StaleFence as services.common.publish does.
    """
    mine = encode_meta(meta)

    def fill(temporary: Path) -> None:
        content = json.dumps(state)
        files = {STATE_FILE: hashlib.sha256(content.encode()).hexdigest()}
        (temporary / META_FILE).write_text(json.dumps({**mine, "term": term, "files": files}))
        (temporary / STATE_FILE).write_text(content)

    claim = Claim(overwrite, term, lambda stored: is_of_save(stored, meta))
    version = publication.publish(public_path(root, directory), fill, claim, stage=stage or (lambda: None))
    return relative(root, version), sum(file.stat().st_size for file in version.iterdir())


def taken(root: Path, directory: str, meta: ArtifactMeta) -> bool:
    """Whether `directory` holds another artifact; an equal meta is an earlier run of the same save."""
    if not os.path.lexists(root / directory):
        return False
    stored = json.loads((root / directory / META_FILE).read_bytes())
    return not is_of_save(stored, meta)


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
