from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from services.trainer.megatron.engine import EngineConfig, MegatronEngine
from tests.doubles.default_model import default_model_or_skip
from tests.unit.trainer.models import BUILDERS, MIXTURES

os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a tiny model (see models.py) -> its directory, built on first use."""
    root = tmp_path_factory.mktemp("models")
    built: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in built:
            built[name] = (BUILDERS | MIXTURES)[name](root / name)
        return built[name]

    return get


@pytest.fixture(scope="session")
def engine_for(model_dir: Callable[[str], Path]) -> Callable[..., MegatronEngine]:
    """A new engine on a tiny model; building one takes milliseconds."""

    def build(name: str = "qwen3", **options: object) -> MegatronEngine:
        return MegatronEngine(EngineConfig(model_dir(name), **options))  # type: ignore[arg-type]

    return build


@pytest.fixture
def engine(engine_for: Callable[..., MegatronEngine]) -> MegatronEngine:
    return engine_for("qwen3")


@pytest.fixture(scope="session")
def default_model() -> Path:
    return default_model_or_skip()
