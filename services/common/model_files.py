"""Facts that a base model's directory tells: read by trainer and sampler alike, so they agree."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import InvalidInput

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class ModelFiles:
    directory: Path
    architecture: str
    vocab_size: int
    max_positions: int
    fingerprint: str


def read_model_files(directory: Path) -> ModelFiles:
    """Raises InvalidInput when `directory` is not a Hugging Face model with safetensors weights."""
    directory = directory.resolve()
    try:
        config = json.loads((directory / "config.json").read_bytes())
        return ModelFiles(
            directory=directory,
            architecture=str(config["architectures"][0]),
            vocab_size=int(config["vocab_size"]),
            max_positions=int(config["max_position_embeddings"]),
            fingerprint=fingerprint(directory),
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise InvalidInput(f"model path {directory}: not a Hugging Face model directory: {error!r}") from error


def fingerprint(directory: Path) -> str:
    """Hex digest over config.json and the bytes of every safetensors file, by name."""
    files = [directory / "config.json", *sorted(directory.glob("*.safetensors"))]
    if len(files) == 1:
        raise InvalidInput(f"model path {directory}: no *.safetensors file")
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def pool_name(model_name: str) -> str:
    """A pool name out of a model name: its last part, lower case, separators as '-'."""
    last = model_name.rstrip("/").rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9_-]+", "-", last).strip("-_")[:63] or "pool"
