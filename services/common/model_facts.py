"""What trainer and sampler tell of a pool alike: read from the model's files and the settings."""

from __future__ import annotations

from pathlib import Path

from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.engine_settings import EngineSettings, split_names
from services.common.errors import InvalidInput
from services.common.ids import is_pool_name
from services.common.model_files import ModelFiles, pool_name, read_model_files

DEFAULT_CONTEXT = 2048


def model_facts(settings: EngineSettings, dtype: str) -> PoolFacts:
    """Raises InvalidInput when the model's directory or a name does not fit."""
    files = read_model_files(Path(settings.model_path))
    base_model = settings.base_model or files.directory.name
    pool = settings.pool or pool_name(base_model)
    if not is_pool_name(pool):
        raise InvalidInput(f"pool {pool!r}: use up to 63 of a-z 0-9 _ - starting with a letter or digit")
    return PoolFacts(
        pool=pool,
        base_model=base_model,
        aliases=split_names(settings.aliases),
        model_fingerprint=files.fingerprint,
        vocab_size=files.vocab_size,
        max_context=_context(settings, files),
        dtype=dtype,
        tokenizer_path=str(files.directory),
        arch=files.architecture,
    )


def _context(settings: EngineSettings, files: ModelFiles) -> int:
    if settings.max_context > files.max_positions:
        raise InvalidInput(f"max_context {settings.max_context} exceeds the model's {files.max_positions} positions")
    return settings.max_context or min(files.max_positions, DEFAULT_CONTEXT)
