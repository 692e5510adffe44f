"""What tells tiers apart: a directory by the id it bears, and within it engines by all that shapes a block."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import msgspec

from services.common.errors import Unavailable
from services.sampler.kv_connector.block_file import BlockGeometry

ID_FILE = "tier.id"
HASH_ALGORITHM = "sha256_cbor"
"""Over canonical CBOR: the same in every process and version of Python."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of two engines are interchangeable only if all of this is equal."""

    engine: str
    model_fingerprint: str
    hash_algorithm: str
    hash_seed: str
    dtype: str
    geometry: BlockGeometry

    @property
    def namespace(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def tier_id(root: Path) -> str:
    """Of the directory; made when it has none yet. Raises Unavailable where it can be neither read nor made.

    Two samplers share blocks only if they see one directory, which its path does not tell.
    """
    file = root / ID_FILE
    mine = root / f"{ID_FILE}.{uuid.uuid4().hex}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            mine.write_text(uuid.uuid4().hex)
            try:
                os.link(mine, file)
            except FileExistsError:
                pass
            finally:
                mine.unlink()
        found = file.read_text()
    except OSError as error:
        raise Unavailable(f"stage kv tier: {root} cannot be used: {error.strerror}") from error
    if not (len(found) == 32 and found.isalnum()):
        raise Unavailable(f"stage kv tier: {file} holds no id; remove it")
    return found
