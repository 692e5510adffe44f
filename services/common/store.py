"""Layout of the shared store and the way into it.

    <root>/runs/<model id>/<kind>/<name>                     relative link to the current version
    <root>/runs/<model id>/<kind>/_version_<name>_<uuid>/    immutable directory with meta.json
    <root>/durable/<pool>/<model id>/<name>                  the mesh's own slot checkpoints, published alike

Every path that came from outside goes through `resolve`, which follows links once and
refuses anything that ends up outside the root.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.common.errors import InvalidInput, MissingResource
from services.common.tinker_path import DURABLE, TinkerPath

META_FILE = "meta.json"
VERSION_PREFIX = "_version_"
TEMPORARY_PREFIX = "_tmp_"


def public_directory(path: TinkerPath) -> str:
    """Relative to the root; the grammar of TinkerPath admits no separator in any segment."""
    return f"runs/{path.model_id}/{path.kind}/{path.name}"


def durable_directory(pool: str, model_id: str, name: str) -> str:
    """Relative to the root; outside runs/, where every path of a client leads."""
    return f"{DURABLE}/{pool}/{model_id}/{name}"


def is_durable(relative: str) -> bool:
    """Whether a directory relative to the root is, or is a version of, a slot checkpoint of the mesh's own."""
    return relative.startswith(f"{DURABLE}/")


def contained(root: Path, relative: str) -> Path:
    """The real path of `relative`. Raises InvalidInput when it leaves `root`."""
    real_root = root.resolve()
    real = (real_root / relative).resolve()
    if not real.is_relative_to(real_root) or real == real_root:
        raise InvalidInput(f"path {relative[:300]!r} leaves the store")
    return real


def resolve(root: Path, path: TinkerPath) -> Path:
    """The immutable version directory `path` names now. Raises MissingResource."""
    real = contained(root, public_directory(path))
    if not (real / META_FILE).is_file():
        raise MissingResource(f"{path} does not exist; saving answers the path to use")
    return real


def is_version_of(directory_name: str, name: str) -> bool:
    """Whether it is a ``_version_<name>_<unique>``; names may hold underscores, the unique part does not."""
    stem, _, unique = directory_name.removeprefix(VERSION_PREFIX).rpartition("_")
    return directory_name.startswith(VERSION_PREFIX) and stem == name and unique.isalnum()


def relative(root: Path, directory: Path) -> str:
    return str(directory.relative_to(root.resolve()))


def read_meta(directory: Path, path: TinkerPath) -> dict[str, Any]:
    """Metadata of one version. Raises InvalidInput when it cannot be read as an object."""
    try:
        meta = json.loads((directory / META_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {META_FILE} cannot be read: {error}") from error
    if not isinstance(meta, dict):
        raise InvalidInput(f"{path}: {META_FILE} is not an object")
    return meta
